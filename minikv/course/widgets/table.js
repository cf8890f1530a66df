// A table of figures below a picture, a row a part. It stands behind form.js, and has no row where nothing is shown.
//
//   columns = ["", heading, ...]      rows = [{ key, label, values: [text] }]

function drawTable(table, columns, rows) {
  table.hidden = !rows.length;
  const body = rows.map(({ key, label, values }) => htmlElement("tr", { "data-key": key },
    htmlElement("th", { scope: "row" }, label), ...values.map((value) => htmlElement("td", {}, value))));
  table.replaceChildren(tableHead(columns), htmlElement("tbody", {}, ...body));
}
