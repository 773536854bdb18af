// Filters above the table of methods: a row stays when it fulfils every box that is ticked.
const ASKED = [
  ["kept by a client", "–", "clients keep nothing"],
  ["more down", "–", "no more download"],
  ["more up", "–", "no more upload"],
  ["more compute", "–", "no more compute"],
  ["personal models", "yes", "personal models"],
  ["clipping", "yes", "takes clipping"],
  ["local momentum", "yes", "takes local momentum"],
];

// Less than FedAvg is no more than FedAvg: `-head`.
function fulfils(said, wanted) {
  return said === wanted || (wanted === "–" && said.startsWith("-"));
}

function filterMethods() {
  const table = [...document.querySelectorAll("article table")].find(
    (found) => found.tHead?.rows[0]?.cells[0]?.textContent === "method" && found.tHead.rows[0].cells.length > 7,
  );
  if (!table || document.querySelector(".methods-filter")) return;
  const columns = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const rows = [...table.tBodies[0].rows];
  const form = document.createElement("form");
  form.className = "methods-filter";
  const count = document.createElement("output");
  const boxes = ASKED.map(([column, wanted, words]) => {
    const box = document.createElement("input");
    box.type = "checkbox";
    const label = document.createElement("label");
    label.append(box, ` ${words}`);
    form.append(label);
    return { box, wanted, at: columns.indexOf(column) };
  });
  const show = () => {
    const ticked = boxes.filter(({ box }) => box.checked);
    for (const row of rows)
      row.hidden = !ticked.every(({ at, wanted }) => fulfils(row.cells[at].textContent.trim(), wanted));
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} methods`;
  };
  form.append(count);
  form.addEventListener("change", show);
  (table.closest(".md-typeset__scrollwrap") ?? table).before(form);
  show();
}

filterMethods();
