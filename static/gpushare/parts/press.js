// Nothing is drawn between press and click: it would move what is pressed from under the pointer, and the browser then
// sees a press here and a release there, which is no click.

const LONGEST = 3000; // of what is not let go by then, the click is given up: the page must not stand still for ever
const SOON = 300; // after a release the click comes, on a touch screen a little later; if it is one

let pressed = false;
let timer = null;
const waiting = [];

export const isPressed = () => pressed;
/** Resolves at once while nothing is pressed, else after the click; in the order in which it was asked. */
export const atRest = () => (pressed ? new Promise((go) => waiting.push(go)) : Promise.resolve());

function end() {
  pressed = false;
  for (const go of waiting.splice(0)) go();
}
function endAfter(time) {
  clearTimeout(timer);
  timer = setTimeout(end, time);
}
function begin() {
  pressed = true;
  endAfter(LONGEST);
}

addEventListener("pointerdown", begin, true);
addEventListener("pointerup", () => endAfter(SOON), true);
for (const over of ["click", "pointercancel"]) addEventListener(over, () => endAfter(0), true);
if (document.querySelector(":active")) begin(); // before this script was there
