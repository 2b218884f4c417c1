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
