// The exceptions of the codec; `index.d.ts` describes them.

export class LogicalrepError extends Error {
  name = "LogicalrepError";
}

export class DecodeError extends LogicalrepError {
  name = "DecodeError";

  constructor(text, messageType = null, field = null, offset = 0) {
    super(text);
    this.messageType = messageType;
    this.field = field;
    this.offset = offset;
  }
}

export class StreamError extends DecodeError {
  name = "StreamError";
}

export class EncodeError extends LogicalrepError {
  name = "EncodeError";

  constructor(text, messageType, field = null) {
    super(text);
    this.messageType = messageType;
    this.field = field;
  }
}
