// The sentence about what goes on by itself. A screen reader follows it: while something runs it changes every few
// seconds at most, and what was said last is always said in the end.
//
//   speak(view)   view has { running, status, error }

const SPEAK_MS = 3000;

function drawReadout() {
  // Built once and then changed: a live region that is replaced is not read out.
  const status = htmlElement("p", { role: "status", "aria-live": "polite" });
  let spoken = -Infinity, latest = null, later = null;
  const say = () => {
    clearTimeout(later);
    later = null;
    spoken = performance.now();
    status.classList.toggle("minikv-error", latest.error);
    if (status.textContent !== latest.status) status.textContent = latest.status;
  };
  const speak = (view) => {
    latest = view;
    const wait = view.running ? spoken + SPEAK_MS - performance.now() : 0;
    if (wait <= 0) say();
    else later ??= setTimeout(say, wait);
  };
  return { status, speak, hush: () => clearTimeout(later) };
}
