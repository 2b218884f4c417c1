import type { Administered } from '../models/email.js'
import { type Catalogue, countsAt, erasedAt, withId } from './catalogue.js'

const portugueseTimes = (times: number) => (times === 1 ? '' : `${times} vezes, a última `)

/** Changes to a user, as predicates of a sentence that begins with the username. */
const portugueseChanges: Record<Administered, string> = {
  'user.activate': 'foi ativado',
  'user.add': 'foi registrado',
  'user.clear-answers': 'não tem mais respostas a perguntas de segurança',
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

/** The e-mails in Brazilian Portuguese. */
export const portuguese: Catalogue = {
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
Todos os acessos abertos foram encerrados. As respostas a perguntas de segurança que ainda não valiam foram
descartadas, exceto as gravadas no mesmo acesso: estas terminam quando você sai de todos os aparelhos.

Se foi você, não é preciso fazer nada.
Se não foi você, recupere o acesso agora pelo aplicativo, em "Esqueci minha senha", e escolha uma senha nova: isso
também descarta respostas gravadas por outra pessoa que ainda não valem. Avise também a sua instituição.`,
  },
  'answer-saved': {
    subject: 'Resposta a uma pergunta de segurança alterada',
    text: ({ username, times, at, address }, when) => `Olá,

uma resposta a uma pergunta de segurança do usuário ${username} foi gravada ${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.

Ela vale desde já, e a resposta anterior não vale mais.

Se foi você, não é preciso fazer nada.
Se não foi você, grave agora as suas próprias respostas pelo aplicativo, com a sua senha: elas valem na hora. Depois
troque a senha: isso encerra todos os acessos abertos. Avise também a sua instituição: um administrador pode
remover as suas respostas.`,
  },
  'answer-waits': {
    subject: 'Nova resposta a uma pergunta de segurança',
    text: ({ username, times, at, address }, when) => `Olá,

uma resposta a uma pergunta de segurança do usuário ${username} foi gravada ${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.
A resposta nova vale a partir de ${when(countsAt(at))}. Até lá vale a anterior.

Se foi você, não é preciso fazer nada. Uma resposta gravada com a sua senha vale na hora.
Se não foi você, saia de todos os aparelhos pelo aplicativo antes desse momento: isso descarta a resposta nova e
encerra todos os acessos abertos. Depois troque a sua senha e avise a sua instituição.`,
  },
  'answers-cleared': {
    subject: 'Suas respostas a perguntas de segurança foram removidas',
    text: ({ username, times, at, address }, when) => `Olá,

um administrador removeu todas as respostas a perguntas de segurança do usuário ${username} ${portugueseTimes(times)}em ${when(at)},
a partir do endereço ${address}. Ninguém mais entra com elas. Você pode gravar respostas novas no aplicativo.

Se você não pediu isso, fale com a sua instituição.`,
  },
  'recovery-login': {
    subject: 'Acesso à sua conta sem a senha',
    text: ({ username, times, at, address }, when) => `Olá,

alguém entrou na conta do usuário ${username} pela recuperação de acesso
${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.

Se foi você, não é preciso fazer nada.
Se não foi você, alguém sabe as suas respostas ou lê os seus e-mails. Grave agora outras respostas às perguntas de
segurança pelo aplicativo, com a sua senha: elas valem na hora. Depois troque a senha: isso encerra todos os acessos
abertos. Avise também a sua instituição: um administrador pode remover as suas respostas.`,
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
A chave anterior não ativa mais ninguém; quem já foi ativado continua ativo. Se a sua conta mudou de instituição,
a chave nova ativa usuários na instituição nova.

Se foi você, não é preciso fazer nada.
Se não foi você, nem um administrador a seu pedido, troque a sua senha agora pelo aplicativo: isso encerra todos os
acessos abertos. Depois troque a chave outra vez e avise a sua instituição.`,
  },
  'account-activated': {
    subject: 'Sua conta foi ativada',
    text: ({ username, times, at, address }, when) => `Olá,

um administrador ativou a conta do usuário ${username} ${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.
Entre de novo no aplicativo para usá-la.

Se você não conhece esta conta ou não esperava isto, fale com a sua instituição.`,
  },
  'organization-changed': {
    subject: 'A instituição da sua conta foi alterada',
    text: ({ username, times, at, address }, when) => `Olá,

um administrador passou o usuário ${username} para outra instituição, ou o tirou da atual,
${portugueseTimes(times)}em ${when(at)}, a partir do endereço ${address}.
Todos os acessos abertos foram encerrados: entre de novo no aplicativo.

Se você não esperava isto, fale com a sua instituição.`,
  },
  'organization-email-changed': {
    subject: 'O endereço de e-mail da sua instituição foi alterado',
    text: ({ organization, at, address }, when) => `Olá,

o endereço de e-mail da instituição ${organization} foi alterado em ${when(at)}, a partir do endereço ${address}.
As chaves de ativação dos seus usuários não chegam mais a esta caixa de correio, e as que já chegaram não valem mais.

Se você não sabe desta mudança, avise agora os administradores do serviço: chaves enviadas a outro endereço
dão acesso como membro da sua instituição.`,
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
