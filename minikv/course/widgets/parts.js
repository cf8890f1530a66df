// The table below a stacked bar: a row a part, marked with the part's letter and pattern, and the total.
//
//   rows = [{ key, letter, label, text, exact, look }], columns = ["", part, size, bytes]

function drawParts(table, columns, rows, paint) {
  table.hidden = !rows.length;
  const body = rows.map((row) => {
    const mark = row.letter ? lookMark(paint, row.look) : legendMark([]);
    return htmlElement("tr", row.letter ? {} : { class: "minikv-total" },
      htmlElement("td", {}, mark, ` ${row.letter}`),
      htmlElement("th", { scope: "row" }, row.label),
      htmlElement("td", { class: "minikv-number" }, row.text),
      htmlElement("td", { class: "minikv-number", "data-key": row.key }, row.exact));
  });
  table.replaceChildren(tableHead(columns), htmlElement("tbody", {}, ...body));
}
