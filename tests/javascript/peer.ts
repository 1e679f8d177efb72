// Answers the tests: each line of the input is a JSON array of requests, each line of the output that of the
// answers. The argument is the path of the package's index.js.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import type * as Package from "../../generated/javascript/src/index.js";

const logicalrep: typeof Package = await import(pathToFileURL(process.argv[2]!).href);

const { DecodeError, EncodeError, StreamDecoder, toJson } = logicalrep;

/** The bytes of a message as hex; with the decoder's arguments, or with true for that of the last `open`. */
type Decode = ["decode", codec: string, data: string, ...arguments: [boolean, Package.Streaming]];
/** A JavaScript expression that may use the names of the package. */
type Evaluate = ["evaluate", expression: string];
type Open = ["open", version: number, options: Package.StreamOptions];
type Feed = ["feed", data: string];

let decoder: Package.StreamDecoder;

function answer(request: Decode | Evaluate | Open | Feed): string {
  try {
    switch (request[0]) {
      case "decode": {
        const [, name, data, inStream, streaming] = request;
        const codec = logicalrep[name as "v4"];
        const message = codec.decode(Buffer.from(data, "hex"), inStream, streaming);
        return decoded(message, codec.encode(message));
      }
      case "open":
        decoder = new StreamDecoder(request[1], request[2]);
        return "null";
      case "feed": {
        const message = decoder.decode(Buffer.from(request[1], "hex"));
        const twoPhase = message.type.includes("Prepare");
        const codec = twoPhase ? logicalrep.v4 : logicalrep.CODECS.get(decoder.protoVersion)!;
        return decoded(message, codec.encode(message));
      }
      case "evaluate": {
        const names = Object.keys(logicalrep).join(", ");
        const body = `const { ${names} } = logicalrep; return ${request[1]}`;
        const value: unknown = new Function("logicalrep", body)(logicalrep);
        return JSON.stringify(value, (_, one) => (typeof one === "bigint" ? String(one) : one)) ?? "null";
      }
    }
  } catch (error) {
    const { name, message } = error as Error;
    if (error instanceof DecodeError) {
      return JSON.stringify({ error: [name, message, error.messageType, error.field, error.offset] });
    }
    if (error instanceof EncodeError) {
      return JSON.stringify({ error: [name, message, error.messageType, error.field] });
    }
    return JSON.stringify({ error: [name, message] });
  }
}

function decoded(message: Package.Message, encoded: Uint8Array): string {
  return `{"message":${toJson(message)},"encoded":"${Buffer.from(encoded).toString("hex")}"}`;
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`[${JSON.parse(line).map(answer).join(",")}]\n`);
}
