// Before anything is drawn: the theme that the reader chose, or the system's.
{
  let kept = null;
  try { kept = localStorage.getItem("minikv-theme"); } catch { /* a browser that keeps nothing */ }
  const dark = kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
