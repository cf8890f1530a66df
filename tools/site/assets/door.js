// The front page leads on: to the language of the last visit, or to the browser's.
{
  let kept = null;
  try { kept = localStorage.getItem("minikv-lang"); } catch { /* a browser that keeps nothing */ }
  const asked = kept ?? ((navigator.language ?? "").startsWith("zh") ? "zh" : "en");
  location.replace(`${asked === "zh" ? "zh" : "en"}/index.html`);
}
