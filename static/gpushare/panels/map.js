// A map of all cards: a block for each node, a column for each card, filled as far as containers hold it. One canvas,
// since 2,400 cards as elements would take the browser a second at each change.
import { colour } from "./charts.js";

const GAP = 6; // pixels between two nodes
const SIZES = [
  [24, 36],
  [14, 30],
  [10, 22],
  [7, 16],
  [5, 12],
]; // a card's width and height, the first at which all is low enough
const LOW = 240; // pixels
const TITLE = 18;

export class CardMap {
  #blocks = []; // {name, x, y, width, height}
  #nodes = [];
  #size = SIZES[0];

  /** `chosen(name)` is called with the node that was clicked; `describe(node, card)` is the text at the pointer. */
  constructor(canvas, { chosen, describe }) {
    this.canvas = canvas;
    canvas.addEventListener("click", (event) => {
      const found = this.#at(event);
      if (found) chosen(found.node.name);
    });
    canvas.addEventListener("pointermove", (event) => {
      const found = this.#at(event);
      canvas.title = found ? describe(found.node, found.card) : "";
      canvas.style.cursor = found ? "pointer" : "";
    });
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    const again = () => {
      this.#colours = null;
      this.draw();
    };
    addEventListener("theme", again);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  }

  #colours = null;
  #look() {
    this.#colours ??= {
      sunk: colour("--sunk"),
      held: colour("--accent"),
      foreign: colour("--edge"),
      line: colour("--line"),
      waits: colour("--warn"),
      bad: colour("--bad"),
      text: colour("--text"),
      faint: colour("--faint"),
    };
    return this.#colours;
  }

  /**
   * `nodes` in their order, as figures() has them; `used`: bytes by card; `chosen`: a name; `group`: a label by whose
   * values they are titled; `waits`: the cards that somebody waits for.
   */
  show(nodes, { used, chosen = "", group = "", waits = new Set() }) {
    this.#nodes = nodes;
    this.used = used;
    this.chosen = chosen;
    this.group = group;
    this.waits = waits;
    this.draw();
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth;
    if (!width || !this.#nodes.length) return;
    const { height } = this.#layOut(width);
    const ratio = devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const look = this.#look();
    pen.font = "12px system-ui";
    pen.textBaseline = "top";
    pen.fillStyle = look.faint;
    for (const { text, y } of this.titles) pen.fillText(text, 0, y + 2);
    for (const block of this.#blocks) this.#drawNode(pen, look, block);
  }

  #layOut(width) {
    for (const size of SIZES) {
      this.#size = size;
      const found = this.#place(width);
      if (found.height <= LOW || size === SIZES.at(-1)) return found;
    }
  }

  #place(width) {
    const [cell, high] = this.#size;
    this.#blocks = [];
    this.titles = [];
    let x = 0,
      y = 0,
      title = null;
    for (const node of this.#nodes) {
      const wide = Math.max(1, node.cards.length) * (cell + 1) + 1;
      const under = this.group ? `${this.group}: ${node.node.labels[this.group] ?? "–"}` : null;
      if (under !== title) {
        if (x) y += high + GAP;
        this.titles.push({ text: under, y });
        [x, y, title] = [0, y + TITLE, under];
      } else if (x && x + wide > width) [x, y] = [0, y + high + GAP];
      this.#blocks.push({ node, x, y, width: wide, height: high });
      x += wide + GAP;
    }
    return { height: y + high + 2 };
  }

  #drawNode(pen, look, { node, x, y, width, height }) {
    const [cell] = this.#size;
    const { alive, drained_at: drained, error } = node.node;
    pen.globalAlpha = alive ? 1 : 0.4;
    pen.fillStyle = look.line;
    pen.fillRect(x, y, width, height);
    for (const [place, [uuid, gpu]] of node.cards.entries()) {
      const left = x + 1 + place * (cell + 1);
      const inner = height - 2;
      pen.fillStyle = look.sunk;
      pen.fillRect(left, y + 1, cell, inner);
      const held = gpu.total ? Math.min(1, (this.used.get(uuid) ?? 0) / gpu.total) : 0;
      const foreign = gpu.total ? Math.min(1 - held, Math.max(0, gpu.most - gpu.capacity) / gpu.total) : 0;
      pen.fillStyle = this.waits.has(uuid) ? look.waits : look.held;
      pen.fillRect(left, y + 1 + inner * (1 - held), cell, inner * held);
      pen.fillStyle = look.foreign;
      pen.fillRect(left, y + 1, cell, inner * foreign);
    }
    pen.globalAlpha = 1;
    const edge = !alive || error ? look.bad : drained ? look.faint : node.name === this.chosen ? look.text : null;
    if (!edge) return;
    pen.strokeStyle = edge;
    pen.lineWidth = node.name === this.chosen ? 2 : 1;
    if (drained) pen.setLineDash([3, 2]);
    pen.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
    pen.setLineDash([]);
  }

  #at({ offsetX, offsetY }) {
    const block = this.#blocks.find(
      ({ x, y, width, height }) => offsetX >= x && offsetX < x + width && offsetY >= y && offsetY < y + height,
    );
    if (!block) return null;
    const card = block.node.cards[Math.floor((offsetX - block.x - 1) / (this.#size[0] + 1))];
    return { node: block.node, card };
  }
}
