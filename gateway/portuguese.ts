// Problem documents in Portuguese. The code has its sentences in English, which are the keys of this catalogue, as in GNU
// gettext: `{0}` stands for a value, which is itself translated if it is in the catalogue. A sentence that isn't stays in
// English; test/gateway/portuguese.test.ts finds those that the code can send.
import type { Problem } from './problem.js'

const catalogue: Readonly<Record<string, string>> = {
  // Reasons, as server/requests/refusal.ts has them.
  'Something went wrong.': 'Ocorreu um erro.',
  'Access denied.': 'Acesso negado.',
  'The token is expired or invalid. Log in again.': 'O token venceu ou é inválido. Entre de novo.',
  'A required parameter is missing.': 'Falta um parâmetro obrigatório.',
  'The request is malformed.': 'A requisição é malformada.',
  'Some fields are missing or invalid.': 'Alguns campos faltam ou são inválidos.',
  'Invalid username or password.': 'Nome de usuário ou senha inválidos.',
  'The user can’t be activated with this key.': 'O usuário não pode ser ativado com esta chave.',
  'The user doesn’t exist.': 'O usuário não existe.',
  'The question doesn’t exist or is retired.': 'A pergunta não existe ou foi retirada.',
  'The user has no answer to one of the questions.': 'O usuário não tem resposta para uma das perguntas.',
  'At least 2 answers must be correct.': 'Pelo menos 2 respostas devem estar corretas.',
  'Give at most 10 answers.': 'Envie no máximo 10 respostas.',
  'Invalid username or key. Request a new key.': 'Nome de usuário ou chave inválidos. Solicite outra chave.',
  'The e-mail address is missing or invalid.': 'O endereço de e-mail falta ou é inválido.',
  'The new password doesn’t meet the requirements.': 'A nova senha não atende às regras.',
  'No organization has this e-mail address.': 'Nenhuma organização tem este endereço de e-mail.',
  'Too many attempts. Try again later.': 'Tentativas demais. Tente de novo mais tarde.',
  'The service is busy. Try again later.': 'O serviço está ocupado. Tente de novo mais tarde.',
  'The service can’t answer now. Try again later.': 'O serviço não pode responder agora. Tente de novo mais tarde.',
  'The deadline has passed. Try again.': 'O prazo passou. Tente de novo.',
  'The record doesn’t exist.': 'O registro não existe.',
  'This name is already taken. Choose another one.': 'Este nome já está em uso. Escolha outro.',
  'The record has changed since it was read. Read it again.': 'O registro mudou desde que foi lido. Leia-o de novo.',
  'The state of the record doesn’t allow this.': 'O estado do registro não permite isto.',
  'Give the one-time code from your authenticator app.': 'Informe o código do seu aplicativo autenticador.',
  'This requires a sign-in in the last 15 minutes, with a one-time code if codes are enrolled. Sign in again.':
    'Isto exige ter entrado nos últimos 15 minutos, com um código se houver códigos cadastrados. Entre de novo.',
  'This can’t be undone. To confirm, repeat the name of the target.':
    'Isto não pode ser desfeito. Para confirmar, repita o nome.',
  'This is the last active administrator. Add another one first.':
    'Este é o último administrador ativo. Adicione outro antes.',
  'On the database itself, changes to administrators and passwords require a reason.':
    'No próprio banco de dados, mudanças de administradores e senhas exigem um motivo.',

  // Fields and parameters.
  'Give {0}.': 'Informe {0}.',
  'Give {0} and {1}.': 'Informe {0} e {1}.',
  'This parameter is required.': 'Este parâmetro é obrigatório.',
  'Fill in this field.': 'Preencha este campo.',
  'Use at most {0} characters.': 'Use no máximo {0} caracteres.',
  'Use at least {0} characters.': 'Use pelo menos {0} caracteres.',
  'Use fewer of these characters.': 'Use menos destes caracteres.',
  'Use letters or digits.': 'Use letras ou dígitos.',
  'Use one of {0}.': 'Use um destes valores: {0}.',
  'Use 0 or more.': 'Use 0 ou mais.',
  'Leave it empty, or use {0} or {1}.': 'Deixe vazio, ou use {0} ou {1}.',
  'Leave out line breaks and other control characters.': 'Retire quebras de linha e outros caracteres de controle.',
  'Leave out control characters.': 'Retire os caracteres de controle.',
  'Leave out invisible, blank and private-use characters.': 'Retire caracteres invisíveis, em branco e de uso privado.',
  'Give a day of the calendar as dd/MM/yyyy.': 'Informe um dia do calendário como dd/MM/aaaa.',
  'Give a day that isn’t in the future.': 'Informe um dia que não esteja no futuro.',
  'Give a day after {0}.': 'Informe um dia depois de {0}.',
  'Give the code of the state, exactly 2 characters.': 'Informe a sigla do estado, exatamente 2 caracteres.',
  'Give an e-mail address such as name@example.org.': 'Informe um endereço de e-mail como nome@example.org.',
  'Not a valid e-mail address.': 'Não é um endereço de e-mail válido.',
  'Accept the terms of usage: this must be true.': 'Aceite os termos de uso: o valor deve ser true.',
  'Give exactly one of {0}.': 'Informe exatamente um destes valores: {0}.',
  'Choose another username: this one is reserved.': 'Escolha outro nome de usuário: este é reservado.',
  'Choose another username: this one reveals your password.': 'Escolha outro nome de usuário: este revela a sua senha.',
  'Choose another username: this one {0}.': 'Escolha outro nome de usuário: este {0}.',
  'Choose another nickname: this one {0}.': 'Escolha outro apelido: este {0}.',
  'Choose another nickname: this one {0}, {1} is free.': 'Escolha outro apelido: este {0}; {1} está livre.',
  'is taken': 'já está em uso',
  'looks like one that is taken': 'se parece com um que já está em uso',
  'Give a password.': 'Informe uma senha.',
  'Choose another password: this one is among the most common.': 'Escolha outra senha: esta é uma das mais comuns.',
  'Choose a password that isn’t part of your own data.': 'Escolha uma senha que não faça parte dos seus dados.',
  'Give answers to at least 2 questions.': 'Responda a pelo menos 2 perguntas.',
  'must be an integer of at most 9 digits': 'deve ser um número inteiro de no máximo 9 dígitos',
  'must be an integer': 'deve ser um número inteiro',
  'must be a list of strings': 'deve ser uma lista de textos',
  'must be a list of objects': 'deve ser uma lista de objetos',
  'must be an object with the documented fields': 'deve ser um objeto com os campos documentados',
  'must be true or false': 'deve ser true ou false',
  'must be a string': 'deve ser um texto',
  'Give an organization, a role or both.': 'Informe uma organização, um papel ou ambos.',
  'Give id or username, not both.': 'Informe id ou username, não os dois.',
  'Give an id or a username.': 'Informe um id ou um nome de usuário.',
  'Give at most {0} references.': 'Envie no máximo {0} referências.',
  'Only services may use id.': 'Só serviços podem usar id.',
  'Not valid for this list and filter. Start without a page token.':
    'Inválido para esta lista e este filtro. Comece sem pageToken.',

  // State of the account.
  'The session has expired. Log in again.': 'A sessão venceu. Entre de novo.',
  'The password was changed less than a day ago. {0} from {1} on.':
    'A senha foi alterada há menos de um dia. {0} a partir de {1}.',
  'The account can be deleted': 'A conta pode ser excluída',
  'The username can be changed': 'O nome de usuário pode ser alterado',
  'The e-mail address can be changed': 'O endereço de e-mail pode ser alterado',
  'An answer can replace the former one at once': 'Uma resposta pode substituir a anterior na hora',
  'The username was changed {0} times in 30 days. It can be changed again from {1} on.':
    'O nome de usuário foi alterado {0} vezes em 30 dias. Pode ser alterado de novo a partir de {1}.',
  'There is no provider key. An activation brings one.': 'Não há chave de provedor. A ativação traz uma.',
  'No service may do this: sign in as an administrator.': 'Nenhum serviço pode fazer isto: entre como administrador.',
  'The service {0} may not do this: it needs the scope {1}.':
    'O serviço {0} não pode fazer isto: precisa do escopo {1}.',

  // The form of requests.
  'The path does not exist.': 'O caminho não existe.',
  'Allowed methods: {0}.': 'Métodos permitidos: {0}.',
  'The Host header is missing or invalid.': 'O cabeçalho Host falta ou é inválido.',
  'Send one Host header.': 'Envie um só cabeçalho Host.',
  'HTTP/1.0 has no Transfer-Encoding.': 'HTTP/1.0 não tem Transfer-Encoding.',
  'The only expectation that is met is 100-continue.': 'A única expectativa atendida é 100-continue.',
  'The message can’t be decoded.': 'A mensagem não pode ser decodificada.',
  'The URL has more than {0} characters.': 'A URL tem mais de {0} caracteres.',
  'The URL or the form has an invalid percent-encoding.':
    'A URL ou o formulário tem uma codificação percentual inválida.',
  'The parameter {0} is given twice, with different values.':
    'O parâmetro {0} foi enviado duas vezes, com valores diferentes.',
  'The parameter {0} is given twice.': 'O parâmetro {0} foi enviado duas vezes.',
  'Send a list, or an object or a form with the field {0}.':
    'Envie uma lista, ou um objeto ou formulário com o campo {0}.',
  'In a form, {0} must be a list as JSON.': 'Em um formulário, {0} deve ser uma lista em JSON.',
  'The parameters in the body must be strings.': 'Os parâmetros no corpo devem ser textos.',
  'The body must be a JSON object.': 'O corpo deve ser um objeto JSON.',
  'The body is not valid JSON.': 'O corpo não é JSON válido.',
  'The body is not valid UTF-8.': 'O corpo não é UTF-8 válido.',
  'The body contains an unpaired surrogate.': 'O corpo contém um substituto Unicode sem par.',
  'The body is nested too deeply.': 'O corpo tem níveis demais.',
  'The body ends early.': 'O corpo termina antes do fim.',
  'The body has more than {0} bytes.': 'O corpo tem mais de {0} bytes.',
  'Send a JSON body.': 'Envie um corpo JSON.',
  'Send the body as application/json.': 'Envie o corpo como application/json.',
  'Send the body in UTF-8.': 'Envie o corpo em UTF-8.',
  'Send the body without compression.': 'Envie o corpo sem compressão.',
}

/** The sentences with values, the most specific first. */
const patterns = Object.entries(catalogue)
  .filter(([english]) => english.includes('{0}'))
  .sort(([a], [b]) => b.length - a.length)
  .map(([english, portuguese]) => {
    const literal = english.replace(/[.*+?^$()|[\]\\]/g, '\\$&')
    return { pattern: new RegExp(`^${literal.replace(/\{\d\}/g, '(.+?)')}$`, 's'), portuguese }
  })

/** A sentence or phrase in Portuguese; the same text if the catalogue doesn't have it. */
export function toPortuguese(english: string): string {
  const whole = catalogue[english]
  if (whole !== undefined) return whole
  for (const { pattern, portuguese } of patterns) {
    const values = pattern.exec(english)
    if (values) return portuguese.replace(/\{(\d)\}/g, (_, index) => toPortuguese(values[Number(index) + 1]!))
  }
  return english
}

/** A problem whose texts are in Portuguese. The reason and the names of fields stay. */
export function inPortuguese(problem: Problem): Problem {
  const { detail } = problem
  const errors = problem.errors?.map(({ field, message }) => ({ field, message: toPortuguese(message) }))
  // A detail that repeats all wrong fields.
  const repeats = detail === problem.errors?.map(({ field, message }) => `${field}: ${message}`).join(' ')
  return {
    ...problem,
    detail: repeats ? errors!.map(({ field, message }) => `${field}: ${message}`).join(' ') : toPortuguese(detail),
    ...(errors && { errors }),
  }
}
