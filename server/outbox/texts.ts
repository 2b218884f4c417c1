// The e-mails: plain text in Brazilian Portuguese and English. Subjects are fixed, so no user input gets into a header.
import { daysUntilPurge } from '../models/administered-user.js'
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
  /** To an organization, for a user who requests activation. The key is valid for 72 hours. */
  'activation-key': { username: string; key: string }
  /** To a user whose password was changed. */
  'password-changed': Occurrences
  /** To a user whose answer to a security question was saved. */
  'answer-saved': Occurrences
  /** To a user after a sign-in by answers or by a mailed key. */
  'recovery-login': Occurrences
  /** To the former address of a user. */
  'email-changed': Occurrences
  /** To a user who deleted the account. */
  'account-deleted': Occurrences
  /** To a user whose username was changed. `username` is the present one. */
  'username-changed': Occurrences
  /** To an administrator after 5 wrong one-time codes with the right password in 15 minutes. */
  'wrong-codes': Occurrences
  /** To a user whose provider key was replaced. */
  'provider-key-rotated': Occurrences
  /** To a user whom its organization deactivated. The client address is that of another user, and isn't shown. */
  'member-deactivated': Occurrences
  /** To an administrator: a change to another administrator or a password, made on the database itself. */
  administration: AdministrativeChange
  /** To an administrator: a change to the administrator's own account, at the server or on the database itself. */
  administered: AdministrativeChange
}

/** A change to a user. With `actorId` the actor is a username, otherwise the actor of the audit log. */
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

/** When an account that was deleted at a time (ISO 8601) is erased. */
const erasedAt = (at: string) => new Date(Date.parse(at) + daysUntilPurge * 86_400_000).toISOString()

const portugueseTimes = (times: number) => (times === 1 ? '' : `${times} vezes, a última `)
const englishTimes = (times: number) => (times === 1 ? '' : `${times} times, the last time `)

/** Changes to a user, as predicates of a sentence that begins with the username. */
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
  'user.rotate-provider-key': 'recebeu uma chave de ativação nova',
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
  'user.enroll-totp': 'now needs a one-time code to sign in',
  'user.erase': 'was permanently erased',
  'user.remove-totp': 'no longer needs a one-time code to sign in',
  'user.resume': 'is no longer suspended',
  'user.revoke-tokens': 'was signed out everywhere',
  'user.rotate-provider-key': 'has a new provider key',
  'user.send-key': 'will receive a recovery key by e-mail',
  'user.set-email': 'was given another e-mail address',
  'user.set-organization': 'was moved to another organization',
  'user.set-password': 'was given a new password',
  'user.set-role': 'was given another role',
  'user.suspend': 'was suspended',
  'user.undelete': 'is no longer deleted',
  'user.unlock': 'was unlocked: failed sign-ins no longer count',
}

/** Returns a username with the id. The username of an erased user is empty. */
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
  'account-deleted': {
    subject: 'Sua conta foi excluída',
    text: ({ username, at, address }, when) => `Olá,

a conta do usuário ${username} foi excluída com a senha em ${when(at)}, a partir do endereço ${address}.
Ela não pode mais ser usada, e todos os acessos foram encerrados.

Em ${when(erasedAt(at))} todos os dados da conta serão apagados definitivamente.
Até lá, um administrador pode restaurar a conta: se mudou de ideia, fale com a sua instituição.
Se não foi você, avise a sua instituição agora: alguém pode saber a sua senha.`,
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
  'provider-key-rotated': {
    subject: 'Sua chave de ativação foi trocada',
    text: ({ username, times, at, address }, when) => `Olá,

a chave com que o usuário ${username} ativa outros usuários foi trocada ${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.
A chave anterior não ativa mais ninguém; quem já foi ativado continua ativo.

Se foi você, não é preciso fazer nada.
Se não foi você, nem um administrador a seu pedido, troque a sua senha agora pelo aplicativo: isso encerra todos os
acessos abertos. Depois troque a chave outra vez e avise a sua instituição.`,
  },
  'member-deactivated': {
    subject: 'Sua conta foi desativada pela sua instituição',
    text: ({ username, times, at }, when) => `Olá,

a instituição do usuário ${username} desativou a conta ${portugueseTimes(times)}em ${when(at)}: a conta não faz mais parte
da instituição, e todos os acessos abertos foram encerrados.

Os seus dados continuam guardados. Para usar a conta de novo, entre no aplicativo e ative-a com uma chave de uma
instituição. Se você não esperava isto, fale com a sua instituição.`,
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

Enter the key in the app. It is valid for 15 minutes and can be used once.

If you didn't request this, ignore this message: no one can access your account without the key.
Don't share the key with anyone.`,
  },
  'email-code': {
    subject: 'Code to confirm this e-mail address',
    text: ({ username, key }) => `Hello,

the user ${username} wants to use this e-mail address for an account.

Your code: ${key}

Enter the code in the app. It is valid for 15 minutes and can be used once.

If it wasn't you, ignore this message: without the code nothing changes, and this address isn't used.
Don't share the code with anyone.`,
  },
  'activation-key': {
    subject: 'Activation key for a user of your organization',
    text: ({ username, key }) => `Hello,

the user ${username} requested a key to activate an account as a member of your organization.

Activation key: ${key}

If you know this user and they belong to the organization, give them the key. They must enter it in the
app within 72 hours. The key can be used once, and only by this user.

If you don't know this user, do nothing: without the key the account stays inactive.`,
  },
  'password-changed': {
    subject: 'Your password was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the password of the user ${username} was changed ${englishTimes(times)}on ${when(at)}, from the address ${address}.
All open sessions were ended.

If it was you, no action is needed.
If it wasn't you, regain access now in the app under "Forgot password", choose a new password, and tell
your organization.`,
  },
  'answer-saved': {
    subject: 'The answer to a security question was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the answer to a security question of the user ${username} was saved ${englishTimes(times)}on ${when(at)}, from the address ${address}.

If it was you, no action is needed.
If it wasn't you, change your password now in the app: that ends all open sessions and discards the new
answer. Also tell your organization.`,
  },
  'recovery-login': {
    subject: 'Sign-in to your account without the password',
    text: ({ username, times, at, address }, when) => `Hello,

someone signed in to the account of the user ${username} by account recovery
${englishTimes(times)}on ${when(at)}, from the address ${address}.

If it was you, no action is needed.
If it wasn't you, change your password now in the app: that ends all open sessions. Also change the answers
to the security questions, and tell your organization.`,
  },
  'email-changed': {
    subject: 'The e-mail address of your account was changed',
    text: ({ username, times, at, address }, when) => `Hello,

the e-mail address of the user ${username} was changed ${englishTimes(times)}on ${when(at)}, from the address ${address}.
Recovery keys and notices are no longer sent to this address.

If it was you, no action is needed.
If it wasn't you or an administrator at your request, someone may know your password: change it now in the app,
and tell your organization, which can have the former address restored.`,
  },
  'account-deleted': {
    subject: 'Your account was deleted',
    text: ({ username, at, address }, when) => `Hello,

the account of the user ${username} was deleted with its password on ${when(at)}, from the address ${address}.
It can't be used any more, and all open sessions were ended.

On ${when(erasedAt(at))} all data of the account will be erased for good.
Until then an administrator can restore it: if you change your mind, ask your organization.
If it wasn't you, tell your organization now: someone may know your password.`,
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

someone entered the correct password of the user ${username} and five wrong one-time codes
${englishTimes(times)}on ${when(at)}, from the address ${address}.
After ten wrong codes in 15 minutes, or thirty in a day, no code is accepted for this account until another
administrator unlocks it.

If it was you, check the clock of the device that shows the codes.
If it wasn't you, someone knows your password: change it now, and tell the other administrators.`,
  },
  'provider-key-rotated': {
    subject: 'Your activation key was replaced',
    text: ({ username, times, at, address }, when) => `Hello,

the key with which the user ${username} activates other users was replaced ${englishTimes(times)}on ${when(at)}, from the address ${address}.
The former key activates no users any more; users that are already active stay active.

If it was you, there is nothing to do.
If it wasn't you, nor an administrator at your request, change your password now in the app: that ends all open
sessions. Then replace the key again, and tell your organization.`,
  },
  'member-deactivated': {
    subject: 'Your organization deactivated your account',
    text: ({ username, times, at }, when) => `Hello,

the organization of the user ${username} deactivated the account ${englishTimes(times)}on ${when(at)}: the account doesn't belong
to the organization any more, and all open sessions were ended.

Your data is still stored. To use the account again, log in in the app and activate it with a key of an
organization. If you didn't expect this, talk to your organization.`,
  },
  administration: {
    subject: 'A change made on the database itself',
    text: ({ username, id, action, role, actor, at, reason }, when) => `Hello,

the user ${withId(username, id)} ${englishChanges[action]}${role ? `: ${role}` : ''}.

Who: ${actor}, on the database itself, without a sign-in as an administrator
When: ${when(at)}
Reason given: ${reason}

All other active administrators receive this message.
If you don't recognize this change, contact the operators of the server now: the person who made it has access
to the database and the master key.`,
  },
  administered: {
    subject: 'A change to your administrator account',
    text: ({ username, id, action, role, actor, at, reason }, when) => `Hello,

the user ${withId(username, id)} ${englishChanges[action]}${role ? `: ${role}` : ''}.

Who: ${actor}
When: ${when(at)}${reason ? `\nReason given: ${reason}` : ''}

If you recognize this change, no action is needed.
If you don't, contact another administrator now: the audit log shows the change, and a suspension ends all
sessions.`,
  },
}

const catalogues: Record<Locale, Catalogue> = { 'pt-BR': portuguese, en: english }

/** Returns the subject and body of an e-mail. User input appears only in the body, without links and addresses. */
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

/** Replaces characters that a link or address needs. `more` lists further punctuation to keep. */
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
