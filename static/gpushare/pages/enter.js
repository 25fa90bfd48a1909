// A link that signs in: its key leaves the address at once, and goes to the server in a form.
const key = location.hash.slice(1);
if (key) {
  history.replaceState(null, "", location.pathname);
  const form = document.getElementById("enter");
  form.elements.key.value = key;
  const status = document.getElementById("entering");
  if (status) status.textContent = "Signing in …";
  form.submit();
}
