// What an anywidget's script asks of its model: `traits` are its values, `changed` is called where it would tell a kernel,
// `heard` with what it would send one.

export function standIn(traits, changed = () => {}, heard = () => {}) {
  const listeners = {};
  return {
    get: (name) => traits[name],
    set(name, value) {
      traits[name] = value;
      for (const listener of listeners[`change:${name}`] ?? []) listener();
    },
    on(event, listener) { (listeners[event] ??= []).push(listener); },
    off(event, listener) { listeners[event] = (listeners[event] ?? []).filter((one) => one !== listener); },
    save_changes: changed,
    send: heard,
  };
}
