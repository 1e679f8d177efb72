// Compiles the .ksy files of a folder to Python modules beside them.
const { readdirSync, readFileSync, writeFileSync } = require('node:fs');
const { join } = require('node:path');
const compiler = require('kaitai-struct-compiler');
const yaml = require('js-yaml');

async function compile(folder) {
  for (const name of readdirSync(folder).filter((one) => one.endsWith('.ksy'))) {
    const spec = yaml.load(readFileSync(join(folder, name), 'utf8'));
    const modules = await compiler.compile('python', spec, null, false);
    for (const [path, text] of Object.entries(modules)) writeFileSync(join(folder, path), text);
  }
}

compile(process.argv[2]).catch((error) => {
  console.error(String(error));
  process.exitCode = 1;
});
