// The frames between a terminal and a container's console (web/console/frames.py says what they mean).
//
// Neither side sends more than WINDOW bytes that the other has not said were taken: a program that prints without end
// waits for this terminal, and a browser that stands still costs nobody anything.

const INPUT = 0,
  OUTPUT = 1,
  ERRORS = 2,
  RESIZE = 3,
  END = 4,
  TAKEN = 5,
  OPEN = 6,
  EXIT = 8;
const WINDOW = 256 * 1024; // bytes
const PIECE = 16 * 1024;

/** Fires "open"; "output" ({detail: {data, taken}}: call taken() once shown); "end" ({detail: {code, refusal}}). */
export class Line extends EventTarget {
  #socket;
  #waiting = []; // pieces that were typed and may not be sent yet
  #untaken = 0;
  #end = { code: null, refusal: null, whole: false };

  /** `first`: what is said before anything else, as JSON; nothing if undefined. */
  constructor(url, first) {
    super();
    this.#socket = new WebSocket(url);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onopen = () => {
      if (first !== undefined) this.#socket.send(JSON.stringify(first));
      this.#send(); // what was typed meanwhile
    };
    this.#socket.onmessage = ({ data }) => this.#hear(data);
    this.#socket.onclose = () => this.#tell("end", this.#end);
  }

  /** `data`: bytes. */
  type(data) {
    for (let at = 0; at < data.length; at += PIECE) this.#waiting.push(data.subarray(at, at + PIECE));
    this.#send();
  }

  resize(rows, columns) {
    this.#put(RESIZE, [rows >> 8, rows & 255, columns >> 8, columns & 255]);
  }

  close() {
    this.#socket.close();
  }

  #send() {
    if (this.#socket.readyState !== WebSocket.OPEN) return;
    while (this.#waiting.length && this.#untaken + this.#waiting[0].length <= WINDOW) {
      const piece = this.#waiting.shift();
      this.#untaken += piece.length;
      this.#put(INPUT, piece);
    }
  }

  #put(kind, payload) {
    if (this.#socket.readyState !== WebSocket.OPEN) return;
    const frame = new Uint8Array(payload.length + 1);
    frame[0] = kind;
    frame.set(payload, 1);
    this.#socket.send(frame);
  }

  #hear(message) {
    if (typeof message === "string") {
      const { status, error } = JSON.parse(message);
      this.#end.refusal = { status, ...error };
      return;
    }
    const frame = new DataView(message);
    const kind = frame.getUint8(0);
    if (kind === OUTPUT || kind === ERRORS) {
      const data = new Uint8Array(message, 1);
      const taken = () => {
        const size = new DataView(new ArrayBuffer(4));
        size.setUint32(0, data.length);
        this.#put(TAKEN, new Uint8Array(size.buffer));
      };
      this.#tell("output", { data, taken });
    } else if (kind === TAKEN) {
      this.#untaken -= frame.getUint32(1);
      this.#send();
    } else if (kind === OPEN) this.#tell("open");
    else if (kind === EXIT) this.#end.code = frame.getInt32(1);
    else if (kind === END) this.#end.whole = true;
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
