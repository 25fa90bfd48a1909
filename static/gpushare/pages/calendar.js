// The zone of the times in forms is the reader's, unless they typed another.
for (const input of document.querySelectorAll("input[name=zone]"))
  if (input.value === "UTC") input.value = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
