// Portuguese for what the OpenAPI documents say in English. The build fails if a text is missing.

/** What the operations of each tag are for. */
export const portugueseGroups: Readonly<Record<string, string>> = {
  users: 'Cadastro, ativação, entrada e consulta de usuários, e mudanças dos usuários nas próprias contas.',
  forgotpasswords: 'Recuperação de senha: perguntas de segurança, uma chave enviada por e-mail, e a nova senha.',
  gateway: 'Verificações de saúde, que o próprio gateway responde.',
}

/** What each operation does, by its `operationId`. */
export const portugueseSummaries: Readonly<Record<string, string>> = {
  // Users
  signUp: 'Cadastra um usuário inativo e devolve um token dele.',
  activate: 'Ativa um usuário com uma chave.',
  login: 'Troca nome de usuário e senha por um token.',
  getMe: 'Devolve o usuário do token e, a pedido, a sua entrada anterior.',
  updateMe: 'Muda o perfil do usuário do token e devolve o seu registro, como `GET /users/me`.',
  refresh: 'Troca um token por outro da mesma sessão, cujo início não muda.',
  getUser: 'Devolve um usuário.',
  sendAdminKeyByEmailPartner: 'Envia uma chave de ativação de uso único ao endereço de uma organização ativa.',
  setEmail:
    'Pede a mudança do endereço de e-mail e envia um código ao novo endereço, que passa a valer com `/users/confirmemail`.',
  confirmEmail: 'Confirma o novo endereço de e-mail, que passa a valer.',
  setUsername: 'Muda o nome de usuário.',
  revokeMyTokens: 'Encerra todas as sessões do usuário: nenhum token vale mais, nem o desta chamada.',
  deleteMe:
    'Exclui a conta do usuário: ela é suspensa e ocultada na hora, nenhum token vale mais, e os seus nomes continuam em uso.',
  exportMe:
    'Devolve os dados armazenados do usuário (LGPD, artigo 18, II), sem segredos e sem dados de outras pessoas.',
  listMyEvents:
    'Lista os eventos do registro de auditoria que o usuário causou ou que lhe dizem respeito, os mais novos primeiro (AIP-158).',
  rotateProviderKey: 'Substitui a chave de provedor do usuário, que é avisado por e-mail.',
  listMembers: 'Lista os membros da organização de quem chama, por id, exceto os excluídos.',
  deactivateMember:
    'Desativa um ROLE_CLIENT da organização de quem chama: ele fica inativo, sai da organização, e seus tokens e chaves enviadas por e-mail deixam de valer.',
  existsByUsername:
    'Informa se um nome de usuário está em uso, ou reservado por ter sido de um usuário, com a mesma comparação do cadastro.',
  existsByNickname: 'Informa se um apelido está em uso, com a mesma comparação do cadastro.',
  introspect: 'Devolve o que a RFC 7662 (introspecção de tokens) prevê para um token, com as declarações do token.',
  getServerMetadata: 'Devolve os metadados da RFC 8414 (metadados do servidor de autorização).',
  getKeys: 'Devolve as chaves públicas que verificam tokens, como JSON Web Key Set (RFC 7517).',

  // Password recovery
  findAllForgotPasswordQuestions:
    'Lista todas as perguntas de segurança, também as retiradas, na ordem que os administradores definem; no início, por id.',
  loginByUsernameAndAnswers: 'Autentica com respostas a pelo menos 2 perguntas de segurança diferentes.',
  loginByUsernameAndKey: 'Autentica com a chave que `/forgotpasswords/sendkeybyemail` envia por e-mail.',
  passwordUpdateByUsername: 'Define uma nova senha e revoga todos os tokens anteriores do usuário.',
  saveForgotPasswordQuestionsUsersAnswers: 'Salva a resposta a uma pergunta, que substitui a anterior.',
  sendKeyByEmail:
    'Envia por e-mail uma chave de 8 caracteres, válida por 15 minutos, um uso e 5 tentativas, se o endereço é o cadastrado para o usuário.',

  // Gateway
  healthz: 'Informa que o gateway funciona.',
  readyz: 'Informa se o serviço pode responder a requisições.',
}

/** Meaning and remedy of each reason over HTTP, translated from the comments in proto/ and in `problem.ts`. */
export const portugueseReasons: Readonly<Record<string, { readonly meaning: string; readonly remedy: string }>> = {
  ACCESS_DENIED: {
    meaning: 'Falta o token, ou quem chama não tem permissão.',
    remedy: 'Envie um token ou chave que tenha a permissão.',
  },
  INVALID_TOKEN: {
    meaning:
      'O token é malformado, tem assinatura errada, venceu ou foi revogado, ou seu usuário foi excluído ou suspenso.',
    remedy: 'Entre de novo.',
  },
  MISSING_PARAMETER: {
    meaning: 'Um parâmetro obrigatório falta ou está vazio.',
    remedy: 'Envie os parâmetros listados.',
  },
  MALFORMED_REQUEST: {
    meaning: 'Um parâmetro ou o corpo não pode ser lido.',
    remedy: 'Corrija a requisição: repetida, ela falharia de novo.',
  },
  INVALID_SIGN_UP: {
    meaning: 'Campos do cadastro faltam ou estão errados; todos são listados.',
    remedy: 'Corrija os campos listados.',
  },
  INVALID_CREDENTIALS: {
    meaning: 'O nome de usuário e a senha não conferem.',
    remedy: 'Informe-os de novo, ou recupere a conta.',
  },
  ACTIVATION_REFUSED: {
    meaning: 'O usuário não pode ser ativado, ou não com esta chave.',
    remedy: 'Confira nome de usuário, papel e chave.',
  },
  USER_NOT_FOUND: { meaning: 'O usuário não existe.', remedy: 'Confira o nome de usuário.' },
  QUESTION_NOT_FOUND: {
    meaning: 'A pergunta de segurança não existe ou foi retirada.',
    remedy: 'Escolha uma das oferecidas.',
  },
  ANSWER_NOT_FOUND: {
    meaning: 'O usuário não tem resposta para uma das perguntas.',
    remedy: 'Responda a perguntas cuja resposta o usuário salvou.',
  },
  INVALID_ANSWERS: { meaning: 'Menos de 2 respostas estão certas.', remedy: 'Responda de novo.' },
  TOO_MANY_ANSWERS: { meaning: 'Há mais de 10 respostas.', remedy: 'Envie no máximo 10.' },
  INVALID_KEY: {
    meaning: 'O nome de usuário e a chave do e-mail não conferem, ou a chave foi usada ou venceu.',
    remedy: 'Solicite outra chave.',
  },
  INVALID_EMAIL: { meaning: 'O texto não é um endereço de e-mail válido.', remedy: 'Corrija-o.' },
  INVALID_PASSWORD: { meaning: 'A nova senha não atende às regras.', remedy: 'Escolha outra.' },
  INVALID_ARGUMENT: {
    meaning: 'Campos da requisição faltam ou estão errados; todos são listados.',
    remedy: 'Corrija os campos listados.',
  },
  ORGANIZATION_EMAIL_NOT_FOUND: {
    meaning: 'Nenhuma organização tem o endereço.',
    remedy: 'Peça o endereço registrado a um administrador.',
  },
  WRONG_STATE: {
    meaning: 'O estado do registro não permite a operação.',
    remedy: 'O texto da recusa diz o que precisa mudar antes.',
  },
  TOO_MANY_ATTEMPTS: { meaning: 'Houve falhas ou requisições demais.', remedy: 'Repita depois do tempo informado.' },
  OVERLOADED: { meaning: 'O serviço está sobrecarregado.', remedy: 'Repita depois do tempo informado.' },
  UNAVAILABLE: { meaning: 'O banco de dados não está disponível.', remedy: 'Repita depois do tempo informado.' },
  DEADLINE_EXCEEDED: {
    meaning: 'O prazo de quem chama passou, ou o limite de tempo da chamada.',
    remedy: 'Repita; verifique antes se uma mudança teve efeito.',
  },
  INTERNAL: { meaning: 'Ocorreu um erro interno.', remedy: 'Informe o id da requisição, com o qual o log tem o erro.' },
  NOT_FOUND: { meaning: 'O caminho não existe.', remedy: 'Confira o caminho e a revisão.' },
  METHOD_NOT_ALLOWED: { meaning: 'O caminho tem outros métodos.', remedy: 'Use um que `Allow` lista.' },
  REQUEST_TIMEOUT: { meaning: 'A requisição não chegou a tempo.', remedy: 'Envie-a de novo.' },
  PAYLOAD_TOO_LARGE: { meaning: 'O corpo é grande demais.', remedy: 'Envie no máximo 64 KiB.' },
  URI_TOO_LONG: { meaning: 'A URL é longa demais.', remedy: 'Envie os parâmetros no corpo.' },
  UNSUPPORTED_MEDIA_TYPE: { meaning: 'O tipo de mídia do corpo não é aceito.', remedy: 'Envie JSON em UTF-8.' },
  EXPECTATION_FAILED: {
    meaning: 'O cabeçalho `Expect` tem outro valor que `100-continue`.',
    remedy: 'Envie a requisição sem ele.',
  },
  HEADERS_TOO_LARGE: {
    meaning: 'Os cabeçalhos são grandes demais.',
    remedy: 'Envie menos cabeçalhos, ou mais curtos.',
  },
}
