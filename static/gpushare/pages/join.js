// An invitation: its key leaves the address at once, and goes to the server with the password that was chosen.
const form = document.getElementById("join");
const key = location.hash.slice(1);
if (key) {
  history.replaceState(null, "", location.pathname);
  form.elements.key.value = key;
}
document.getElementById("no-key").hidden = form.elements.key.value !== "";
