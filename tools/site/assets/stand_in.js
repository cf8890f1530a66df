// What an anywidget's script asks of its model: `traits` are its values, `changed` is called where it would tell a kernel.

export function standIn(traits, changed = () => {}) {
  const listeners = {};
  return {
    get: (name) => traits[name],
    set(name, value) {
      traits[name] = value;
      for (const heard of listeners[`change:${name}`] ?? []) heard();
    },
    on(event, heard) { (listeners[event] ??= []).push(heard); },
    off(event, heard) { listeners[event] = (listeners[event] ?? []).filter((one) => one !== heard); },
    save_changes: changed,
  };
}
