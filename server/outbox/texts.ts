/** The e-mails: plain text in Brazilian Portuguese and English. Subjects are fixed, so nothing given gets into a header. */
import { visible } from '../names.js'

/** Languages there are e-mails in. */
export type Locale = 'pt-BR' | 'en'

/** The language for a value of `Accept-Language` (RFC 9110). */
export type ChooseLocale = (acceptLanguage: string | undefined) => Locale

/** What each kind of e-mail tells. */
export interface Contents {
  /** To a user who forgot the password. The key is good for 15 minutes. */
  'recovery-key': { username: string; key: string }
  /** To an organization, for a user of its own who wants to be activated. The key is good for 72 hours. */
  'activation-key': { username: string; key: string }
  /** To a user whose password was changed. */
  'password-changed': Happened
  /** To a user for whom the answer to a security question was saved. */
  'answer-saved': Happened
  /** To a user as whom someone signed in without the password. */
  'recovery-login': Happened
}

/** What happened to a user's account so many times, the last time at a time (ISO 8601) and from a client address. */
interface Happened {
  username: string
  times: number
  at: string
  address: string
}

type Catalogue = {
  [K in keyof Contents]: {
    subject: string
    text: (content: Contents[K], when: (at: string) => string) => string
  }
}

const vezes = (times: number) => (times === 1 ? '' : `${times} vezes, a última `)
const count = (times: number) => (times === 1 ? '' : `${times} times, the last time `)

const portuguese: Catalogue = {
  'recovery-key': {
    subject: 'Sua chave para recuperar o acesso',
    text: ({ username, key }) => `Olá,

recebemos um pedido de recuperação de acesso para o usuário ${username}.

Sua chave: ${key}

Digite a chave no aplicativo. Ela vale por 15 minutos e só pode ser usada uma vez.

Se você não fez este pedido, ignore esta mensagem: sem a chave ninguém entra na sua conta.
Não passe a chave a ninguém.`,
  },
  'activation-key': {
    subject: 'Chave de ativação para um usuário da sua instituição',
    text: ({ username, key }) => `Olá,

o usuário ${username} pediu uma chave para ativar a conta como membro da sua instituição.

Chave de ativação: ${key}

Se você conhece esta pessoa e ela faz parte da instituição, entregue-lhe a chave. Ela deve digitá-la no
aplicativo em até 72 horas; a chave só pode ser usada uma vez e apenas por este usuário.

Se você não conhece esta pessoa, não faça nada: sem a chave a conta continua inativa.`,
  },
  'password-changed': {
    subject: 'Sua senha foi alterada',
    text: ({ username, times, at, address }, when) => `Olá,

a senha do usuário ${username} foi alterada ${vezes(times)}em ${when(at)}, a partir do endereço ${address}.
Todos os acessos abertos foram encerrados.

Se foi você, não é preciso fazer nada.
Se não foi você, recupere o acesso agora pelo aplicativo, em "Esqueci minha senha", escolha uma senha nova
e avise a sua instituição.`,
  },
  'answer-saved': {
    subject: 'Resposta a uma pergunta de segurança alterada',
    text: ({ username, times, at, address }, when) => `Olá,

uma resposta a uma pergunta de segurança do usuário ${username} foi gravada ${vezes(times)}em ${when(at)}, a partir do endereço ${address}.

Se foi você, não é preciso fazer nada.
Se não foi você, troque a sua senha agora pelo aplicativo: isso encerra todos os acessos abertos e descarta
a resposta nova. Avise também a sua instituição.`,
  },
  'recovery-login': {
    subject: 'Acesso à sua conta sem a senha',
    text: ({ username, times, at, address }, when) => `Olá,

alguém entrou na conta do usuário ${username} pela recuperação de acesso
${vezes(times)}em ${when(at)}, a partir do endereço ${address}.

Se foi você, não é preciso fazer nada.
Se não foi você, troque a sua senha agora pelo aplicativo: isso encerra todos os acessos abertos. Troque
também as respostas às perguntas de segurança e avise a sua instituição.`,
  },
}

const english: Catalogue = {
  'recovery-key': {
    subject: 'Your key to regain access',
    text: ({ username, key }) => `Hello,

we received a request to regain access for the user ${username}.

Your key: ${key}

Enter the key in the app. It is good for 15 minutes and can be used once.

If you didn't ask for this, ignore this message: without the key nobody gets into your account.
Give the key to nobody.`,
  },
  'activation-key': {
    subject: 'Activation key for a user of your organization',
    text: ({ username, key }) => `Hello,

the user ${username} asked for a key to activate an account as a member of your organization.

Activation key: ${key}

If you know this user and they belong to the organization, hand them the key. They must enter it in the
app within 72 hours; it can be used once, and by this user only.

If you don't know this user, do nothing: without the key the account stays inactive.`,
  },
  'password-changed': {
    subject: 'Your password was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the password of the user ${username} was changed ${count(times)}on ${when(at)}, from the address ${address}.
All open sessions were ended.

If it was you, there is nothing to do.
If it wasn't you, regain access now in the app under "Forgot password", choose a new password, and tell
your organization.`,
  },
  'answer-saved': {
    subject: 'The answer to a security question was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the answer to a security question of the user ${username} was saved ${count(times)}on ${when(at)}, from the address ${address}.

If it was you, there is nothing to do.
If it wasn't you, change your password now in the app: that ends all open sessions and discards the new
answer. Also tell your organization.`,
  },
  'recovery-login': {
    subject: 'Your account was entered without the password',
    text: ({ username, times, at, address }, when) => `Hello,

someone entered the account of the user ${username} by account recovery
${count(times)}on ${when(at)}, from the address ${address}.

If it was you, there is nothing to do.
If it wasn't you, change your password now in the app: that ends all open sessions. Also change the answers
to the security questions, and tell your organization.`,
  },
}

const catalogues: Record<Locale, Catalogue> = { 'pt-BR': portuguese, en: english }

/** Subject and body of an e-mail. What is given goes into the body alone; of it only the username is a stranger's text. */
export function writeEmail<K extends keyof Contents>(
  kind: K,
  locale: Locale,
  content: Contents[K],
): { subject: string; text: string } {
  const format = new Intl.DateTimeFormat(locale, { dateStyle: 'long', timeStyle: 'short', timeZone: 'UTC' })
  const when = (at: string) => `${format.format(new Date(at))} (UTC)`
  const { subject, text } = catalogues[locale][kind]
  return { subject, text: `${text({ ...content, username: shownUsername(content.username) }, when)}\n` }
}

/** Most characters of a username in an e-mail. */
const mostShown = 40

/**
 * A username as e-mails show it. It is anybody's text: `·` stands for what isn't a letter, a digit, a space or a sign of
 * telephone numbers and names, since no link and no address can do without, and a long one is cut.
 */
export function shownUsername(username: string): string {
  const plain = visible(username)
    .normalize('NFKC')
    .replace(/[^\p{L}\p{M}\p{N} ()+'’_\p{Pd}]+/gu, '·')
  const characters = [...plain]
  return characters.length <= mostShown ? plain : `${characters.slice(0, mostShown - 1).join('')}…`
}

/**
 * The language for a user who sent an `Accept-Language` header: look-up of RFC 4647 among the languages there are,
 * by quality. Any Portuguese gets pt-BR. `fallback` when there is no header, no match, or the match is `*`.
 */
export function chooseLocale(acceptLanguage: string | undefined, fallback: Locale): Locale {
  const ranges = (acceptLanguage ?? '')
    .slice(0, 1000)
    .split(',')
    .map(range => /^\s*([a-z]{1,8}|\*)(?:-[a-z0-9-]*)?\s*(?:;\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*)?$/i.exec(range))
    .filter(range => range !== null)
    .map(([, language, quality = '1']) => ({ language: language!.toLowerCase(), quality: Number(quality) }))
    .filter(({ quality }) => quality > 0)
    .sort((a, b) => b.quality - a.quality)
  for (const { language } of ranges) {
    if (language === 'pt') return 'pt-BR'
    if (language === 'en') return 'en'
    if (language === '*') return fallback
  }
  return fallback
}
