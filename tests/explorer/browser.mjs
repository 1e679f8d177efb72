// Use the protocol explorer in a headless Chromium, as a reader does. `browser.py` runs this file.
//
// node tests/explorer/browser.mjs PAGE CAPTURE [FOLDER]: PAGE is generated/explorer/index.html, CAPTURE a
// capture file to open, FOLDER gets screenshots. The working folder has the packages of package.json installed.
// Exit code 1: a check failed. Exit code 3: Chromium does not start.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.cwd(), "package.json"));
const sparticuz = await import(pathToFileURL(require.resolve("@sparticuz/chromium")));
const Chromium = sparticuz.default ?? sparticuz;
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [page_file, capture, folder] = process.argv.slice(2).map((path) => resolve(path));
const URL_OF_PAGE = pathToFileURL(page_file).href;
const BEGIN = "42 00000000016b3848 0002dad4b2a2b040 000002ea".replaceAll(" ", "");
const COMMIT = "43 00 00000000016b3848 00000000016b3878 0002dad4b2a2b040".replaceAll(" ", "");

const CHECK_SECONDS = 120;
const MOST_BUSY = 2000; // milliseconds in which the page may not answer while it reads 100 MB
const NO_CHROMIUM = 3;

async function launch() {
  try {
    const executablePath = await Chromium.executablePath();
    return await chromium.launch({ args: ["--no-sandbox"], executablePath, headless: true, timeout: 60_000 });
  } catch ({ message }) {
    const lines = message.split("\n");
    const reason = lines.find((line) => /error while loading|cannot|failed/i.test(line)) ?? lines[0];
    console.log(`Left out the tests in a browser: Chromium does not start (${reason.trim()})`);
    process.exit(NO_CHROMIUM);
  }
}

const browser = await launch();
const problems = [];

async function open(hash = "", options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("console", (one) => one.type() === "error" && problems.push(one.text()));
  page.on("request", (one) => /^(file|data|blob):/.test(one.url()) || problems.push(`a request to ${one.url()}`));
  await page.goto(URL_OF_PAGE + hash);
  await page.waitForSelector("#rows [role=option]");
  return page;
}

async function paste(page, text) {
  await page.click("#paste");
  await page.fill("#pasted", text);
  await page.click("#pasting button[value=read]");
}

const status = (page, text) => page.waitForFunction((text) => document.querySelector("#status").textContent.includes(text), text);

/** Wait until the worker has done what the page asked for. */
const settled = (page) => page.waitForSelector("#list[aria-busy=false]");

async function drop(page, name, bytes) {
  await page.evaluate(
    ({ name, digits }) => {
      const files = new DataTransfer();
      files.items.add(new File([Uint8Array.from(digits.match(/../g), (pair) => parseInt(pair, 16))], name));
      document.querySelector("#list").dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
    },
    { name, digits: bytes.toString("hex") },
  );
}

const title = (page) => page.textContent("#message-title");

const checks = {
  async "the example is legal and explained"() {
    const page = await open();
    await status(page, "no problem");
    await page.click("#rows [role=option] >> nth=1");
    assert.match(await title(page), /Begin/);
    const names = await page.$$eval("#tree [role=treeitem]", (all) => all.length);
    assert.ok(names >= 4);
    await page.click("#tree [role=treeitem] >> nth=1");
    assert.ok((await page.$$("#hex .chosen")).length && (await page.$$("#yaml .chosen")).length);
  },
  async "every example is legal"() {
    const page = await open();
    const values = await page.$$eval("#example option", (all) => all.map((one) => one.value).filter(Boolean));
    assert.ok(values.length > 50);
    for (const version of new Set(values.map((one) => one[0]))) {
      await page.selectOption("#example", values.find((one) => one[0] === version));
      await settled(page);
      assert.match(await page.textContent("#status"), /no problem/);
    }
  },
  async "pasted hex and base64 are read"() {
    const page = await open();
    await paste(page, `${BEGIN}\n${COMMIT}`);
    await status(page, "2 messages");
    assert.match(await page.textContent("#rows"), /Begin.*xid 746.*Commit/s);
    await paste(page, Buffer.from(BEGIN, "hex").toString("base64"));
    await status(page, "1 message");
  },
  async "a dropped file is opened"() {
    const page = await open();
    await drop(page, "stream.bin", Buffer.from(`${BEGIN}0a${COMMIT}0a`, "hex"));
    await status(page, "file of pg_recvlogical: 2 messages");
  },
  async "a file of another kind is refused, and the stream stays"() {
    const page = await open();
    await drop(page, "picture.png", Buffer.from("89504e470d0a1a0a", "hex"));
    await page.waitForSelector("#problem:not(:empty)");
    assert.match(await page.textContent("#problem"), /89 50 4e 47/);
    assert.ok((await page.$$("#rows [role=option]")).length);
  },
  async "an illegal message is marked"() {
    const page = await open();
    await paste(page, BEGIN.slice(0, -2));
    await status(page, "1 problem");
    assert.match(await page.textContent("#message-problem"), /xid/);
    assert.ok((await page.$$("#hex .wrong, #hex .rest")).length);
  },
  async "a message in the wrong place is marked"() {
    const page = await open();
    await paste(page, `${COMMIT}\n${COMMIT}`);
    await status(page, "2 messages");
    assert.notEqual(await page.textContent("#message-problem"), "");
  },
  async "an edited field is encoded again"() {
    const page = await open();
    await paste(page, `${BEGIN}\n${COMMIT}`);
    await status(page, "2 messages");
    await page.click("#tree [role=treeitem]:has-text('xid')");
    await page.fill("#edit-value", "747");
    await page.click("#apply-value");
    await page.waitForFunction(() => document.querySelector("#rows").textContent.includes("xid 747"));
    await page.fill("#edit-value", "5000000000");
    await page.click("#apply-value");
    assert.match(await page.textContent("#edit-error"), /does not fit/);
    await page.click("#tree [role=treeitem]:has-text('final_lsn')");
    await page.fill("#edit-value", "0/16B3849");
    await page.click("#apply-value");
    await status(page, "1 problem");
    await page.evaluate(() => (document.querySelector("#message").scrollTop = 10_000));
    await page.click("#next");
    assert.ok(await page.$eval("#message-problem", (one) => one.getBoundingClientRect().top > 0));
    const broken = "Commit.commit_lsn: Begin has final_lsn 0/16B3849, not 0/16B3848 (commit-as-begun)";
    assert.equal(await page.textContent("#message-problem"), broken);
  },
  async "edits are taken back and done again"() {
    const page = await open();
    await paste(page, `${BEGIN}\n${COMMIT}`);
    await status(page, "2 messages");
    assert.ok((await page.isDisabled("#undo")) && (await page.isDisabled("#redo")));
    for (const xid of ["747", "748"]) {
      await page.click("#tree [role=treeitem]:has-text('xid')");
      await page.fill("#edit-value", xid);
      await page.click("#apply-value");
      await page.waitForFunction((xid) => document.querySelector("#rows").textContent.includes(`xid ${xid}`), xid);
    }
    await page.click("#undo");
    await page.waitForFunction(() => document.querySelector("#rows").textContent.includes("xid 747"));
    await page.focus("#list");
    await page.keyboard.press("Control+z");
    await page.waitForFunction(() => document.querySelector("#rows").textContent.includes("xid 746"));
    assert.ok(await page.isDisabled("#undo"));
    await page.keyboard.press("Control+Shift+z");
    await page.waitForFunction(() => document.querySelector("#rows").textContent.includes("xid 747"));
    await page.click("#redo");
    await page.waitForFunction(() => document.querySelector("#rows").textContent.includes("xid 748"));
    assert.ok(await page.isDisabled("#redo"));
  },
  async "all bytes of a message are edited, also those of an illegal one"() {
    const page = await open();
    await paste(page, `${BEGIN}\n${COMMIT}`);
    await status(page, "2 messages");
    assert.equal(await page.textContent("#edit-name"), "all bytes");
    await page.fill("#edit-bytes", BEGIN.slice(0, -2));
    await page.click("#apply-bytes");
    await status(page, "2 problems");
    await page.fill("#edit-bytes", `${BEGIN}00`);
    await page.press("#edit-bytes", "Enter");
    await page.waitForFunction(() => document.querySelector("#message-problem").textContent.includes("the message ends here"));
    await page.fill("#edit-bytes", BEGIN);
    await page.click("#apply-bytes");
    await status(page, "no problem");
  },
  async "a damaged file is opened up to its damage"() {
    const page = await open();
    await drop(page, "stream.bin", Buffer.from(`${BEGIN}0a${COMMIT}0a4900`, "hex"));
    await status(page, "file of pg_recvlogical: 2 messages");
    assert.match(await page.textContent("#problem"), /^The file is damaged after message 2: byte 49: /);
  },
  async "a row is followed, and its columns have names and types"() {
    const page = await open();
    await page.selectOption("#example", "4 Update");
    await page.waitForFunction(() => document.querySelector("#message-title").textContent.includes("Update"));
    assert.match(await page.textContent("#tree"), /\[0\] id int4/);
    const all = await page.getAttribute("#rows [role=option]", "aria-setsize");
    await page.selectOption("#example", "4 Truncate");
    await page.waitForFunction(() => document.querySelector("#message-title").textContent.includes("Truncate"));
    assert.ok(await page.isHidden("#follow"));
    await page.selectOption("#example", "4 Update");
    await page.waitForSelector("#follow:not([hidden])");
    await page.click("#follow");
    await page.waitForSelector("#followed:not([hidden])");
    const shown = await page.$$eval("#rows [role=option]", (all) => all.map((one) => one.textContent));
    assert.ok(shown.length && shown.length < Number(all) && shown.every((text) => /Insert|Update|Delete/.test(text)), shown);
    await page.click("#followed");
    await page.waitForFunction((all) => document.querySelector("#rows [role=option]").getAttribute("aria-setsize") === all, all);
  },
  async "a permalink holds stream and selection"() {
    const page = await open();
    await paste(page, `${BEGIN}\n${COMMIT}`);
    await status(page, "2 messages");
    await page.click("#rows [role=option] >> nth=1");
    await page.click("#link");
    await status(page, "The address is a link to this stream");
    const other = await open(await page.evaluate(() => location.hash));
    await status(other, "2 messages");
    assert.match(await title(other), /2\. Commit/);
  },
  async "a damaged link is told"() {
    const page = await open("#v=4&s=off&t=0&m=1&d=AAAA");
    await page.waitForSelector("#problem:not(:empty)");
    assert.match(await page.textContent("#problem"), /^The link is damaged: /);
    assert.ok((await page.$$("#rows [role=option]")).length > 1);
  },
  async "messages have times, and a change the row of its table"() {
    const page = await open();
    await page.selectOption("#example", "4 Update");
    await page.waitForFunction(() => document.querySelector("#message-title").textContent.includes("Update"));
    assert.match(await page.textContent("#rows [aria-selected=true] .time"), /^\d\d:\d\d:\d\d/);
    const heads = await page.$$eval("#tuples tr:first-child th", (all) => all.map((one) => one.textContent));
    const cells = await page.$$("#tuples tr:last-child td");
    assert.ok(heads.includes("id") && heads.length === cells.length);
    await cells[0].click();
    assert.ok(await page.$eval("#tuples tr:last-child td", (one) => one.classList.contains("chosen")));
    assert.ok((await page.$$("#hex .chosen")).length);
  },
  async "a value of several lines, and a NULL that gets a value, are edited"() {
    const page = await open();
    await page.selectOption("#example", "4 Insert");
    await page.waitForFunction(() => document.querySelector("#message-title").textContent.includes("Insert"));
    await page.click("#tuples tr:last-child td >> nth=1");
    await page.fill("#edit-value", "two\nlines");
    await page.press("#edit-value", "Enter");
    await page.waitForFunction(() => document.querySelector("#tuples").textContent.includes("two\\nlines"));
    assert.equal(await page.inputValue("#edit-value"), "two\nlines");
    await page.click("#edit-null");
    await page.waitForSelector("#tuples tr:last-child td:nth-of-type(2).null");
    await page.fill("#edit-value", "again");
    await page.click("#apply-value");
    await page.waitForFunction(() => document.querySelector("#tuples").textContent.includes("again"));
    assert.equal(await page.inputValue("#edit-value"), "again");
    assert.equal(await page.textContent("#edit-name"), "new[1]");
    await page.focus("#list");
    await page.keyboard.press("Control+z");
    await page.waitForSelector("#tuples tr:last-child td:nth-of-type(2).null");
    await page.focus("#list");
    await page.keyboard.press("Control+y");
    await page.waitForFunction(() => document.querySelector("#tuples").textContent.includes("again"));
  },
  async "keepalives are left out, and kinds of the replication protocol are chosen"() {
    const page = await open();
    await page.selectOption("#example", "0 PrimaryKeepalive");
    const kinds = () => page.$$eval("#rows .title", (all) => all.map((one) => one.textContent));
    await page.waitForFunction(() => document.querySelector("#rows").textContent.includes("keepalive"));
    await page.selectOption("#kind", { label: "Without keepalives" });
    await page.waitForFunction(() => !document.querySelector("#rows").textContent.includes("keepalive"));
    assert.ok((await kinds()).length >= 1);
    await page.selectOption("#kind", { label: "Primary keepalive message" });
    await page.waitForFunction(() => document.querySelector("#rows").textContent.includes("keepalive"));
    assert.ok((await kinds()).every((one) => one === "Primary keepalive message"));
  },
  async "a capture file is opened, filtered and searched"() {
    const page = await open();
    await page.setInputFiles("#file", capture);
    await status(page, "messages");
    await page.waitForFunction(() => !document.querySelector("#status").textContent.includes("47 messages"));
    await page.selectOption("#kind", { label: "Commit" });
    await page.waitForFunction(() => document.querySelector("#rows [role=option]")?.textContent.includes("Commit"));
    const kinds = await page.$$eval("#rows [role=option]", (all) => all.map((one) => one.textContent));
    assert.ok(kinds.length && kinds.every((text) => text.includes("Commit")), kinds[0]);
    await page.selectOption("#kind", "");
    await page.fill("#search", "no such text anywhere");
    await page.waitForSelector("#none:not([hidden])");
  },
  async "100 MB stay responsive"() {
    const page = await open();
    const [head, ...lines] = gunzipSync(readFileSync(capture)).toString().trimEnd().split("\n");
    const once = lines.join("\n");
    const folder = mkdtempSync(join(tmpdir(), "explorer-"));
    const file = join(folder, "large.jsonl");
    writeFileSync(file, `${head}\n${`${once}\n`.repeat(Math.ceil((100 << 20) / once.length))}`);
    await page.setInputFiles("#file", file);
    await page.evaluate(() => {
      window.slowest = 0;
      let last = performance.now();
      setInterval(() => {
        window.slowest = Math.max(window.slowest, performance.now() - last);
        last = performance.now();
      }, 10);
    });
    await page.waitForFunction(() => /\d{3},\d{3} messages/.test(document.querySelector("#status").textContent), null, { timeout: 120_000 });
    const slowest = await page.evaluate(() => window.slowest);
    console.log(`        100 MB: busy for at most ${slowest.toFixed(0)} ms; ${await page.textContent("#status")}`);
    assert.ok(slowest < MOST_BUSY, `the page was busy for ${slowest} ms`);
    rmSync(folder, { recursive: true });
    await page.press("#list", "End");
    assert.ok((await page.$$("#rows [role=option]")).length < 200);
  },
  async "the keyboard selects messages and fields"() {
    const page = await open();
    const before = await title(page);
    await page.press("#list", "ArrowDown");
    await page.waitForFunction((before) => document.querySelector("#message-title").textContent !== before, before);
    await page.focus("#tree");
    await page.press("#tree", "ArrowDown");
    assert.ok(await page.getAttribute("#tree", "aria-activedescendant"));
  },
  async "there is no violation of accessibility rules"() {
    for (const options of [{}, { colorScheme: "dark" }, { viewport: { width: 390, height: 800 } }]) {
      const page = await open("", options);
      await page.click("summary");
      await page.evaluate(AXE);
      for (const [example, title] of [["4 Begin", "Begin"], ["4 Update", "Update"], ["4 StreamAbort", "Stream Abort"], ["4 Relation", "Relation"]]) {
        await page.selectOption("#example", example);
        await page.waitForFunction((title) => document.querySelector("#message-title").textContent.endsWith(title), title);
        await page.click("#tree [role=treeitem] >> nth=1");
        const { violations } = await page.evaluate(() => axe.run());
        assert.deepEqual(violations.map((one) => [example, one.id, one.nodes[0].html.slice(0, 200)]), []);
      }
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(wide <= 0, `${wide} pixels wider than the window`);
    }
  },
};

/** Write pictures of the page for docs/howto/explorer.md. */
async function takeScreenshots(folder) {
  for (const colorScheme of ["light", "dark"]) {
    const page = await open("", { colorScheme, viewport: { width: 1160, height: 660 } });
    await page.selectOption("#example", "4 StreamAbort");
    await status(page, "no problem");
    await page.click("#tree [role=treeitem]:has-text('subxid')");
    await page.screenshot({ path: join(folder, `explorer-${colorScheme}.png`) });
  }
}

function within(seconds, promise) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`not done within ${seconds} s`)), seconds * 1000)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  const begin = Date.now();
  try {
    await within(CHECK_SECONDS, check());
    console.log(`ok      ${name} (${((Date.now() - begin) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}: ${error.message}`);
  }
  for (const context of browser.contexts()) await context.close();
}
if (folder) await takeScreenshots(folder);
await browser.close();
for (const one of problems) console.log(`FAILED  in the page: ${one}`);
process.exit(failed || problems.length ? 1 : 0);
