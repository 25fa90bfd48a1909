import "../parts/copy.js";

// Times on this page are in the zone of its address: the reader's, unless another was chosen.
const main = document.querySelector("[data-zone-asked]");
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
if (main && main.dataset.zoneAsked === "" && zone !== "UTC") {
  const address = new URL(location.href);
  address.searchParams.set("zone", zone);
  location.replace(address);
}
