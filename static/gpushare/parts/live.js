// The socket: snapshot, numbered deltas, and the truth about how old what is seen is.
//
// Fires on the exported `live`: "change" ({detail: {changes, whole}}) after `live.state` was brought up to date, and
// "connection" when `live.fresh` changes. A number that does not follow the last one means that something was missed:
// everything is asked for again. Silence means that the line is dead, whatever the browser believes.
import { setClock } from "./format.js";
import { atRest } from "./press.js";

const SILENCE = 6000; // the server says something every two seconds
const ANSWERED = 30000; // by then a page that was asked for is there
const RETRY = [250, 500, 1000, 2000, 4000];

/** Fields that changed; null for a record that is gone. What a container has of its GPUs is sent in the same way. */
function merge(records, changes) {
  for (const [key, change] of Object.entries(changes)) {
    const old = records[key];
    if (change === null) delete records[key];
    else if (change.gpus && old?.gpus) {
      const gpus = { ...old.gpus };
      merge(gpus, change.gpus);
      records[key] = { ...old, ...change, gpus };
    } else records[key] = { ...old, ...change };
  }
}

class Live extends EventTarget {
  state = { node: {}, nodes: {}, gpus: {}, containers: {}, attention: {} };
  fresh = false;
  ever = false;
  heard = performance.now(); // when what is shown was last known to be true
  #alive = performance.now(); // when this socket last gave a sign of life
  #left = -Infinity; // when another page was asked for last
  #seq = null;
  #socket = null;
  #tries = 0;
  #resyncing = false;

  start(path) {
    const url = new URL(path, location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.url = url;
    this.#open();
    setInterval(async () => {
      await atRest();
      if (this.#socket && performance.now() - this.#alive > this.#patience()) this.#lost();
    }, 1000);
    addEventListener("beforeunload", () => {
      this.#left = performance.now();
    });
    addEventListener("online", () => {
      if (!this.#socket) this.#open();
    });
  }

  /** Longer each time that nothing came: a server that is slow to read all there is would begin anew for ever. */
  #patience() {
    return SILENCE * 2 ** Math.min(this.#tries, 3);
  }

  #open() {
    clearTimeout(this.timer);
    const socket = new WebSocket(this.url);
    this.#socket = socket;
    this.#alive = performance.now();
    socket.onmessage = async (event) => {
      await atRest();
      if (socket === this.#socket) this.#take(JSON.parse(event.data));
    };
    socket.onclose = async (event) => {
      await atRest();
      if (socket !== this.#socket) return;
      // Signed out elsewhere: the server shows the sign-in page. But an answer that is under way is not broken off: it
      // may bring the next session, as that to a new password does.
      if (event.code === 4401 && performance.now() - this.#left > ANSWERED) location.reload();
      else this.#lost();
    };
  }

  #lost() {
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
    this.#setFresh(false);
    this.timer = setTimeout(() => this.#open(), RETRY[Math.min(this.#tries++, RETRY.length - 1)]);
  }

  #setFresh(fresh) {
    if (this.fresh === fresh) return;
    this.fresh = fresh;
    this.dispatchEvent(new Event("connection"));
  }

  #take(message) {
    this.#alive = performance.now();
    if (message.type === "snapshot") {
      this.state = message.data;
      this.#seq = message.seq;
      this.#resyncing = false;
    } else if (this.#resyncing || (message.type === "delta" && message.seq <= this.#seq)) {
      return;
    } else if (message.seq !== this.#seq + (message.type === "delta" ? 1 : 0)) {
      this.#resyncing = true;
      this.#socket.send(JSON.stringify({ type: "resync" }));
      return;
    } else if (message.type === "delta") {
      this.#apply(message.data);
      this.#seq = message.seq;
    }
    this.heard = performance.now();
    this.#tries = 0;
    this.ever = true;
    setClock(message.now);
    this.#setFresh(true);
    if (message.type !== "tick") {
      const whole = message.type === "snapshot";
      this.dispatchEvent(new CustomEvent("change", { detail: { whole, changes: whole ? this.state : message.data } }));
    }
  }

  #apply(changes) {
    Object.assign(this.state.node, changes.node);
    for (const section of ["nodes", "gpus", "containers", "attention"]) {
      merge(this.state[section], changes[section] ?? {});
    }
  }
}

export const live = new Live();
