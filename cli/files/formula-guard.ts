// What spreadsheets run, and how cells of CSV keep it as text: an apostrophe before it, which an import removes.

/** What begins a formula (OWASP, CSV Injection), also in full and small width. */
const signs = '=+\\-@\\t\\r\\n＝＋－＠﹦﹢﹣﹫−'

/** Apostrophes before such a sign, where a cell can begin for some spreadsheet: it may expect another separator than the file has. */
const pattern = (apostrophes: string) =>
  new RegExp(`(?=['${signs}])(?<=(?:^|[;,|\\t\\r\\n])["\\s]*?)${apostrophes}(?=[${signs}])`, 'g')

const [any, some, oneAndMore] = [pattern("'*"), pattern("'+"), pattern("'('*)")]

/** A text as a formula that yields it, `="…"`, by which generators of CSV keep zeros in front. */
const asFormula = /^="((?:[^"]|"")*)"$/

/** Writes a text so that no spreadsheet runs a part of it. */
export function guard(text: string): string {
  return text.replace(any, `'$&`)
}

/** Writes a text as it is, but for what `readCell` would change. */
export function escapeCell(text: string): string {
  return asFormula.test(text) ? guard(text) : text.replace(some, `'$&`)
}

/** Reads a text that `guard` or `escapeCell` wrote, or a spreadsheet. */
export function readCell(text: string): string {
  const formula = asFormula.exec(text)?.[1]
  return formula === undefined ? text.replace(oneAndMore, '$1') : formula.replaceAll('""', '"')
}

/** Errors of Excel, LibreOffice and Google Sheets, in English and Portuguese, behind `#`. */
const errors = (
  'N/A N/D REF! DIV/0! VALUE! VALOR! NAME? NOME? NUM! NÚM! NULL! NULO! ERROR! ERRO! SPILL! DESPEJAR! CALC! CÁLC! FIELD! CAMPO! ' +
  'BLOCKED! BLOQUEADO! CONNECT! CONECTAR! UNKNOWN! DESCONHECIDO! BUSY! OCUPADO! PYTHON! GETTING_DATA OBTENDO_DADOS'
).split(' ')

/** Whether a cell is what a spreadsheet shows instead of a value: an error, or `####` in a narrow column. */
export function isSpreadsheetError(cell: string): boolean {
  const text = cell.trim().normalize()
  return /^(?:#{3,}|Erro?:\d{3})$/.test(text) || (text.startsWith('#') && errors.includes(text.slice(1)))
}
