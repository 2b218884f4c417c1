// The e-mails: plain text in Brazilian Portuguese and English. Subjects are fixed, so no user input gets into a header.
import type { Administered } from '../models/email.js'
import { visible } from '../rules/names.js'

/** Languages of the e-mails. */
export type Locale = 'pt-BR' | 'en'

/** Chooses the language for a value of `Accept-Language` (RFC 9110). */
export type ChooseLocale = (acceptLanguage: string | undefined) => Locale

/** The content of each kind of e-mail. */
export interface Contents {
  /** To a user who forgot the password. The key is valid for 15 minutes. */
  'recovery-key': { username: string; key: string }
  /** To the new address of a user. The code is valid for 15 minutes. */
  'email-code': { username: string; key: string }
  /** To an organization, for one of its users who asks for activation. The key is valid for 72 hours. */
  'activation-key': { username: string; key: string }
  /** To a user whose password was changed. */
  'password-changed': Occurrences
  /** To a user whose answer to a security question was saved. */
  'answer-saved': Occurrences
  /** To a user after a sign-in by answers or by a mailed key. */
  'recovery-login': Occurrences
  /** To the former address of a user. */
  'email-changed': Occurrences
  /** To a user whose username was changed. `username` is the present one. */
  'username-changed': Occurrences
  /** To an administrator after 5 wrong one-time codes with the right password in 15 minutes. */
  'wrong-codes': Occurrences
  /** To an administrator: a change to another administrator or a password, made on the database itself. */
  administration: AdministrativeChange
  /** To an administrator: a change to it, by another administrator or on the database itself. */
  administered: AdministrativeChange
}

/** A change to a user. The actor is the user with `actorId`, or without it an actor of the audit log. */
interface AdministrativeChange {
  username: string
  id: number
  action: Administered
  role?: string
  actor: string
  actorId?: number
  at: string
  reason?: string
}

/** Events of one kind on a user's account: their number, with time (ISO 8601) and client address of the last. */
interface Occurrences {
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

const portugueseTimes = (times: number) => (times === 1 ? '' : `${times} vezes, a última `)
const englishTimes = (times: number) => (times === 1 ? '' : `${times} times, the last time `)

/** Changes to a user, as predicates after its name. */
const portugueseChanges: Record<Administered, string> = {
  'user.activate': 'foi ativado',
  'user.add': 'foi registrado',
  'user.delete': 'foi excluído',
  'user.edit': 'teve os dados alterados',
  'user.enroll-totp': 'precisa agora de um código de uso único para entrar',
  'user.erase': 'foi apagado definitivamente',
  'user.remove-totp': 'não precisa mais de código de uso único para entrar',
  'user.resume': 'não está mais suspenso',
  'user.revoke-tokens': 'teve todos os acessos encerrados',
  'user.send-key': 'deve receber por e-mail uma chave de recuperação',
  'user.set-email': 'teve o endereço de e-mail alterado',
  'user.set-organization': 'mudou de instituição',
  'user.set-password': 'recebeu uma senha nova',
  'user.set-role': 'recebeu outro papel',
  'user.suspend': 'foi suspenso',
  'user.undelete': 'não está mais excluído',
  'user.unlock': 'foi desbloqueado: as tentativas de entrar que falharam não contam mais',
}

const englishChanges: Record<Administered, string> = {
  'user.activate': 'was activated',
  'user.add': 'was registered',
  'user.delete': 'was deleted',
  'user.edit': 'was changed',
  'user.enroll-totp': 'needs a one-time code to sign in from now on',
  'user.erase': 'was erased for good',
  'user.remove-totp': 'needs no one-time code to sign in any more',
  'user.resume': 'is suspended no longer',
  'user.revoke-tokens': 'was logged out everywhere',
  'user.send-key': 'is mailed a recovery key',
  'user.set-email': 'was given another e-mail address',
  'user.set-organization': 'was moved to another organization',
  'user.set-password': 'was given a new password',
  'user.set-role': 'was given another role',
  'user.suspend': 'was suspended',
  'user.undelete': 'is deleted no longer',
  'user.unlock': 'was unlocked: sign-ins that failed count no more',
}

/** A user by name and id. The name of an erased user is empty. */
const withId = (username: string, id: number) => (username === '' ? `(id ${id})` : `${username} (id ${id})`)

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
  'email-code': {
    subject: 'Código para confirmar este endereço de e-mail',
    text: ({ username, key }) => `Olá,

o usuário ${username} quer usar este endereço de e-mail na sua conta.

Seu código: ${key}

Digite o código no aplicativo. Ele vale por 15 minutos e só pode ser usado uma vez.

Se não foi você, ignore esta mensagem: sem o código nada muda, e este endereço não é usado.
Não passe o código a ninguém.`,
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

a senha do usuário ${username} foi alterada ${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.
Todos os acessos abertos foram encerrados.

Se foi você, não é preciso fazer nada.
Se não foi você, recupere o acesso agora pelo aplicativo, em "Esqueci minha senha", escolha uma senha nova
e avise a sua instituição.`,
  },
  'answer-saved': {
    subject: 'Resposta a uma pergunta de segurança alterada',
    text: ({ username, times, at, address }, when) => `Olá,

uma resposta a uma pergunta de segurança do usuário ${username} foi gravada ${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.

Se foi você, não é preciso fazer nada.
Se não foi você, troque a sua senha agora pelo aplicativo: isso encerra todos os acessos abertos e descarta
a resposta nova. Avise também a sua instituição.`,
  },
  'recovery-login': {
    subject: 'Acesso à sua conta sem a senha',
    text: ({ username, times, at, address }, when) => `Olá,

alguém entrou na conta do usuário ${username} pela recuperação de acesso
${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.

Se foi você, não é preciso fazer nada.
Se não foi você, troque a sua senha agora pelo aplicativo: isso encerra todos os acessos abertos. Troque
também as respostas às perguntas de segurança e avise a sua instituição.`,
  },
  'email-changed': {
    subject: 'O endereço de e-mail da sua conta foi alterado',
    text: ({ username, times, at, address }, when) => `Olá,

o endereço de e-mail do usuário ${username} foi alterado ${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.
Chaves de recuperação e avisos não chegam mais a esta caixa de correio.

Se foi você, não é preciso fazer nada.
Se não foi você, nem um administrador a seu pedido, alguém pode saber a sua senha: troque-a agora pelo aplicativo
e avise a sua instituição, que pode pedir o endereço anterior de volta.`,
  },
  'username-changed': {
    subject: 'Seu nome de usuário foi alterado',
    text: ({ username, times, at, address }, when) => `Olá,

o nome de usuário da sua conta foi alterado ${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.
O novo nome, sem caracteres especiais, é ${username}. O nome anterior não serve mais para entrar e fica
reservado para a sua conta por 30 dias.

Se foi você, não é preciso fazer nada.
Se não foi você, nem um administrador a seu pedido, alguém sabe a sua senha: troque-a agora pelo aplicativo
e avise a sua instituição.`,
  },
  'wrong-codes': {
    subject: 'Códigos de uso único errados na sua conta de administrador',
    text: ({ username, times, at, address }, when) => `Olá,

alguém digitou a senha certa do usuário ${username} e cinco códigos de uso único errados
${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.
Depois de dez códigos errados em 15 minutos, ou de trinta em um dia, ninguém mais entra com códigos desta conta
até que outro administrador a desbloqueie.

Se foi você, acerte o relógio do aparelho que mostra os códigos.
Se não foi você, alguém sabe a sua senha: troque-a agora e avise os outros administradores.`,
  },
  administration: {
    subject: 'Mudança feita no próprio banco de dados',
    text: ({ username, id, action, role, actor, at, reason }, when) => `Olá,

o usuário ${withId(username, id)} ${portugueseChanges[action]}${role ? `: ${role}` : ''}.

Quem: ${actor}, diretamente no banco de dados, sem entrar como administrador
Quando: ${when(at)}
Motivo informado: ${reason}

Todos os outros administradores ativos recebem esta mensagem.
Se você não sabe desta mudança, fale agora com quem cuida do servidor: quem a fez tem acesso ao banco de dados
e à chave mestra.`,
  },
  administered: {
    subject: 'Mudança na sua conta de administrador',
    text: ({ username, id, action, role, actor, at, reason }, when) => `Olá,

o usuário ${withId(username, id)} ${portugueseChanges[action]}${role ? `: ${role}` : ''}.

Quem: ${actor}
Quando: ${when(at)}${reason ? `\nMotivo informado: ${reason}` : ''}

Se você sabe desta mudança, não é preciso fazer nada.
Se não sabe, fale agora com outro administrador: o registro de auditoria mostra o que foi feito, e uma suspensão
encerra todos os acessos.`,
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
  'email-code': {
    subject: 'Code to confirm this e-mail address',
    text: ({ username, key }) => `Hello,

the user ${username} wants to use this e-mail address for an account.

Your code: ${key}

Enter the code in the app. It is good for 15 minutes and can be used once.

If it wasn't you, ignore this message: without the code nothing changes, and this address isn't used.
Give the code to nobody.`,
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

the password of the user ${username} was changed ${englishTimes(times)}on ${when(at)}, from the address ${address}.
All open sessions were ended.

If it was you, there is nothing to do.
If it wasn't you, regain access now in the app under "Forgot password", choose a new password, and tell
your organization.`,
  },
  'answer-saved': {
    subject: 'The answer to a security question was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the answer to a security question of the user ${username} was saved ${englishTimes(times)}on ${when(at)}, from the address ${address}.

If it was you, there is nothing to do.
If it wasn't you, change your password now in the app: that ends all open sessions and discards the new
answer. Also tell your organization.`,
  },
  'recovery-login': {
    subject: 'Your account was entered without the password',
    text: ({ username, times, at, address }, when) => `Hello,

someone entered the account of the user ${username} by account recovery
${englishTimes(times)}on ${when(at)}, from the address ${address}.

If it was you, there is nothing to do.
If it wasn't you, change your password now in the app: that ends all open sessions. Also change the answers
to the security questions, and tell your organization.`,
  },
  'email-changed': {
    subject: 'The e-mail address of your account was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the e-mail address of the user ${username} was changed ${englishTimes(times)}on ${when(at)}, from the address ${address}.
Recovery keys and notices don't come to this mailbox any more.

If it was you, there is nothing to do.
If it wasn't you, nor an administrator at your request, someone may know your password: change it now in the app,
and tell your organization, which can have the former address set again.`,
  },
  'username-changed': {
    subject: 'Your username was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the username of your account was changed ${englishTimes(times)}on ${when(at)}, from the address ${address}.
The new username, without special characters, is ${username}. You can't sign in with the former one any more;
it is reserved for your account for 30 days.

If it was you, there is nothing to do.
If it wasn't you, nor an administrator at your request, someone knows your password: change it now in the app,
and tell your organization.`,
  },
  'wrong-codes': {
    subject: 'Wrong one-time codes for your administrator account',
    text: ({ username, times, at, address }, when) => `Hello,

someone gave the right password of the user ${username} and five wrong one-time codes
${englishTimes(times)}on ${when(at)}, from the address ${address}.
After ten wrong codes in 15 minutes, or thirty in a day, no code of this account is taken until another
administrator unlocks it.

If it was you, set the clock of the device that shows the codes.
If it wasn't you, somebody knows your password: change it now, and tell the other administrators.`,
  },
  administration: {
    subject: 'A change made on the database itself',
    text: ({ username, id, action, role, actor, at, reason }, when) => `Hello,

the user ${withId(username, id)} ${englishChanges[action]}${role ? `: ${role}` : ''}.

Who: ${actor}, on the database itself, without a sign-in as an administrator
When: ${when(at)}
Reason given: ${reason}

All other active administrators get this message.
If you don't know of this change, talk now to those who run the server: whoever made it has access to the
database and the master key.`,
  },
  administered: {
    subject: 'A change to your administrator account',
    text: ({ username, id, action, role, actor, at, reason }, when) => `Hello,

the user ${withId(username, id)} ${englishChanges[action]}${role ? `: ${role}` : ''}.

Who: ${actor}
When: ${when(at)}${reason ? `\nReason given: ${reason}` : ''}

If you know of this change, there is nothing to do.
If you don't, talk now to another administrator: the audit log shows what was done, and a suspension ends all
sessions.`,
  },
}

const catalogues: Record<Locale, Catalogue> = { 'pt-BR': portuguese, en: english }

/** Returns subject and body of an e-mail. User input stands in the body only, without links and addresses. */
export function writeEmail<K extends keyof Contents>(
  kind: K,
  locale: Locale,
  content: Contents[K],
): { subject: string; text: string } {
  const when = (at: string) => {
    const format = new Intl.DateTimeFormat(locale, { dateStyle: 'long', timeStyle: 'short', timeZone: 'UTC' })
    return `${format.format(new Date(at))} (UTC)`
  }
  const { subject, text } = catalogues[locale][kind]
  const shown = { ...content, username: shownUsername(content.username) }
  if ('actor' in shown) {
    const { actor, actorId, reason } = shown
    Object.assign(shown, {
      actor:
        actorId === undefined ? plain(actor.replace(/^cli:(.*)@/, '$1, '), ',') : withId(shownUsername(actor), actorId),
      ...(reason !== undefined && { reason: plain(reason, ',;:!?') }),
    })
  }
  return { subject, text: `${text(shown, when)}\n` }
}

/** Maximum characters of a username in an e-mail. */
const maxShown = 40

/**
 * Returns a username as e-mails show it, at most 40 characters long. Anyone can choose a username, so `·` replaces
 * characters other than letters, digits, spaces and the punctuation of names and telephone numbers: without them there
 * are no links or addresses.
 */
export function shownUsername(username: string): string {
  const shown = plain(username)
  const characters = [...shown]
  return characters.length <= maxShown ? shown : `${characters.slice(0, maxShown - 1).join('')}…`
}

/** Returns a text in which no link or address can stand. `more` lists further punctuation to keep. */
function plain(text: string, more = ''): string {
  return visible(text)
    .normalize('NFKC')
    .replace(new RegExp(`[^\\p{L}\\p{M}\\p{N} ()+'’_\\p{Pd}${more}]+`, 'gu'), '·')
}

/**
 * Chooses the language for an `Accept-Language` header: lookup (RFC 4647, 3.4) among the languages of the e-mails, by
 * quality. Any Portuguese matches pt-BR. Returns `fallback` without a header or match, and when `*` matches.
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
