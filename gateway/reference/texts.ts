// What the pages themselves say. Descriptions come from the OpenAPI documents, in English, and portuguese.ts.

/** Languages of the pages, the default first. */
export const locales = ['en', 'pt-BR'] as const

/** A language of the pages. */
export type Locale = (typeof locales)[number]

/** Names of the languages, in themselves. */
export const localeNames: Readonly<Record<Locale, string>> = { en: 'English', 'pt-BR': 'Português' }

const en = {
  title: 'Authentication and user registry',
  skip: 'Skip to the content',
  revision: 'Revision',
  openapi: 'OpenAPI document',
  contents: 'Contents',
  introduction: 'Introduction',
  tags: { users: 'Users', forgotpasswords: 'Password recovery', gateway: 'Gateway' } as Readonly<
    Record<string, string>
  >,
  signIn: 'Sign in',
  signInAbout: 'The session stays in this page, and ends when you leave it. Calls that you try run on this registry.',
  username: 'Username',
  password: 'Password',
  credential: 'Token, or key of a service',
  token: 'token',
  parameters: 'Parameters',
  inPath: 'path',
  inQuery: 'query',
  inBody: 'query or body',
  required: 'required',
  body: 'Body',
  answers: 'Answers',
  noBody: 'no body',
  try: 'Try it',
  send: 'Send',
  copy: 'Copy as curl',
  reasons: 'Reasons',
  reasonsAbout: 'A refusal is a problem document (RFC 9457) with one of these reasons.',
  remedy: 'What to do:',
  records: 'Records',
  copied: 'Copied.',
  selected: 'Selected; press Ctrl+C.',
  signedIn: 'Signed in.',
  unreachable: 'No answer: the registry can’t be reached.',
  start: {
    about: 'This is the HTTP port of a user registry. Apps sign users up and in here; services verify their tokens.',
    reference: 'Reference',
    referenceAbout: 'Every operation, to read and to try.',
    openapi: 'For generators and tools.',
    proto: 'Protocol Buffers',
    protoAbout: 'The same operations for Connect and gRPC-Web on this port, and for gRPC on its own.',
    keys: 'Keys',
    keysAbout: 'With these, services verify tokens by themselves.',
    metadata: 'Metadata',
    metadataAbout: 'For software that knows OAuth 2.0 (RFC 8414).',
    health: 'Health',
    healthAbout: 'The gateway runs; the service can answer.',
  },
}

/** The texts of a language. */
export type Texts = typeof en

/** The texts of each language. */
export const texts: Readonly<Record<Locale, Texts>> = {
  en,
  'pt-BR': {
    title: 'Autenticação e registro de usuários',
    skip: 'Ir para o conteúdo',
    revision: 'Revisão',
    openapi: 'Documento OpenAPI',
    contents: 'Conteúdo',
    introduction: 'Introdução',
    tags: { users: 'Usuários', forgotpasswords: 'Recuperação de senha', gateway: 'Gateway' },
    signIn: 'Entrar',
    signInAbout: 'A sessão fica nesta página e termina quando você sai dela. As chamadas são feitas neste registro.',
    username: 'Nome de usuário',
    password: 'Senha',
    credential: 'Token, ou chave de um serviço',
    token: 'token',
    parameters: 'Parâmetros',
    inPath: 'caminho',
    inQuery: 'consulta',
    inBody: 'consulta ou corpo',
    required: 'obrigatório',
    body: 'Corpo',
    answers: 'Respostas',
    noBody: 'sem corpo',
    try: 'Experimentar',
    send: 'Enviar',
    copy: 'Copiar como curl',
    reasons: 'Motivos',
    reasonsAbout: 'Uma recusa é um documento de problema (RFC 9457) com um destes motivos.',
    remedy: 'O que fazer:',
    records: 'Registros',
    copied: 'Copiado.',
    selected: 'Selecionado; pressione Ctrl+C.',
    signedIn: 'Sessão iniciada.',
    unreachable: 'Sem resposta: o registro não pode ser alcançado.',
    start: {
      about:
        'Esta é a porta HTTP de um registro de usuários. Aplicativos cadastram e autenticam usuários aqui; serviços verificam os tokens.',
      reference: 'Referência',
      referenceAbout: 'Todas as operações, para ler e experimentar.',
      openapi: 'Para geradores e ferramentas.',
      proto: 'Protocol Buffers',
      protoAbout: 'As mesmas operações por Connect e gRPC-Web nesta porta, e por gRPC na dele.',
      keys: 'Chaves',
      keysAbout: 'Com elas, serviços verificam tokens por conta própria.',
      metadata: 'Metadados',
      metadataAbout: 'Para programas que conhecem OAuth 2.0 (RFC 8414).',
      health: 'Saúde',
      healthAbout: 'O gateway funciona; o serviço pode responder.',
    },
  },
}
