// Lets a library that writes its own styles do so under our Content-Security-Policy, which forbids <style> elements and
// style attributes: a sheet that a script makes, and an element's `style` object, are allowed and do the same.

/** Until the page is left: a <style> that is made by a script is a sheet of the document's. */
export function sheetsForStyles() {
  const create = Document.prototype.createElement;
  document.createElement = (name, ...more) =>
    name === "style" ? standIn(create.call(document, "span")) : create.call(document, name, ...more);
  const set = Element.prototype.setAttribute;
  HTMLElement.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else set.call(this, name, value);
  };
}

/** An element that shows nothing, whose text is a sheet for as long as it stands in the document. */
function standIn(element) {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  element.hidden = true;
  Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text) });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((other) => other !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}
