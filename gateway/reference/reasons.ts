/** Meaning and remedy of each reason in Portuguese. */
export const portugueseReasons: Readonly<Record<string, { readonly meaning: string; readonly remedy: string }>> = {
  ACCESS_DENIED: {
    meaning: 'Falta o token, ou quem chama não tem permissão.',
    remedy:
      'Envie `Authorization: Bearer` com um token. Se a requisição já tem um, o usuário não pode fazer isto: não repita.',
  },
  INVALID_TOKEN: {
    meaning:
      'O token é malformado, tem assinatura errada, venceu ou foi revogado, ou seu usuário foi excluído ou suspenso.',
    remedy: 'Entre de novo. Guarde o token antigo apenas para enviá-lo no próximo login.',
  },
  MISSING_PARAMETER: {
    meaning: 'Um parâmetro obrigatório falta ou está vazio.',
    remedy: 'Envie os parâmetros listados em `errors`.',
  },
  MALFORMED_REQUEST: {
    meaning: 'Um parâmetro ou o corpo não pode ser lido.',
    remedy: 'Corrija o cliente: `detail` diz o que não pode ser lido.',
  },
  INVALID_SIGN_UP: {
    meaning: 'Campos do cadastro faltam ou estão errados; todos são listados.',
    remedy: 'Mostre cada mensagem de `errors` junto de seu campo, para que o usuário os corrija.',
  },
  INVALID_CREDENTIALS: {
    meaning: 'O nome de usuário e a senha não conferem.',
    remedy: 'Peça de novo o nome de usuário e a senha. Ofereça a recuperação.',
  },
  ACTIVATION_REFUSED: {
    meaning: 'O usuário não pode ser ativado, ou não com esta chave.',
    remedy: 'Peça outra chave. Quem já está ativo não precisa de nenhuma.',
  },
  USER_NOT_FOUND: {
    meaning: 'O usuário não existe.',
    remedy: 'Confira o nome de usuário.',
  },
  QUESTION_NOT_FOUND: {
    meaning: 'A pergunta de segurança não existe ou foi retirada.',
    remedy: 'Liste as perguntas de novo e ofereça aquelas com `active` 1.',
  },
  ANSWER_NOT_FOUND: {
    meaning: 'O usuário não tem resposta para uma das perguntas.',
    remedy: 'Peça ao usuário outras perguntas, ou recupere por e-mail.',
  },
  INVALID_ANSWERS: {
    meaning: 'Menos de 2 respostas estão certas.',
    remedy: 'Peça as respostas de novo. Duas precisam estar certas.',
  },
  TOO_MANY_ANSWERS: {
    meaning: 'Mais de 10 respostas.',
    remedy: 'Envie no máximo 10 respostas.',
  },
  INVALID_KEY: {
    meaning: 'O nome de usuário e a chave do e-mail não conferem, ou a chave foi usada ou venceu.',
    remedy: 'Solicite outra chave: só a mais nova vale, uma vez, por 15 minutos e 5 tentativas.',
  },
  INVALID_EMAIL: {
    meaning: 'O texto não é um endereço de e-mail válido.',
    remedy: 'Peça o endereço de novo.',
  },
  INVALID_PASSWORD: {
    meaning: 'A nova senha não atende às regras.',
    remedy: 'Mostre `detail` e peça outra senha.',
  },
  INVALID_ARGUMENT: {
    meaning: 'Campos da requisição faltam ou estão errados; todos são listados.',
    remedy: 'Corrija os campos listados em `errors`.',
  },
  ORGANIZATION_EMAIL_NOT_FOUND: {
    meaning: 'Nenhuma organização tem o endereço.',
    remedy: 'Peça o endereço que a organização registrou.',
  },
  WRONG_STATE: {
    meaning: 'O estado do registro não permite a operação.',
    remedy: 'Leia `detail`: diz o que impede a operação e a partir de quando ela é possível.',
  },
  TOO_MANY_ATTEMPTS: {
    meaning: 'Falhas ou requisições demais.',
    remedy: 'Repita depois dos segundos em `Retry-After`, não antes.',
  },
  OVERLOADED: {
    meaning: 'O serviço está sobrecarregado.',
    remedy: 'Repita depois dos segundos em `Retry-After`.',
  },
  UNAVAILABLE: {
    meaning: 'O serviço não pode responder.',
    remedy: 'Repita depois dos segundos em `Retry-After`.',
  },
  DEADLINE_EXCEEDED: {
    meaning: 'O prazo de quem chama passou, ou o limite de tempo da chamada.',
    remedy: 'Repita. A operação pode ter acontecido: leia antes de repetir o que não é idempotente.',
  },
  INTERNAL: {
    meaning: 'Um erro interno; o log o tem com o id da requisição.',
    remedy: 'Informe `requestId` ao operador do serviço, cujo log tem o erro.',
  },
  NOT_FOUND: {
    meaning: 'O caminho não existe.',
    remedy: 'Corrija o caminho. Maiúsculas e minúsculas contam.',
  },
  METHOD_NOT_ALLOWED: {
    meaning: 'O caminho tem outros métodos; `Allow` os lista.',
    remedy: 'Use um método listado em `Allow`.',
  },
  REQUEST_TIMEOUT: {
    meaning: 'A requisição não chegou a tempo.',
    remedy: 'Envie a requisição inteira em até 15 segundos.',
  },
  PAYLOAD_TOO_LARGE: {
    meaning: 'O corpo é grande demais.',
    remedy: 'Envie no máximo 64 KiB.',
  },
  URI_TOO_LONG: {
    meaning: 'A URL é longa demais.',
    remedy: 'Envie os parâmetros no corpo. Uma URL tem no máximo 8 KiB.',
  },
  UNSUPPORTED_MEDIA_TYPE: {
    meaning: 'O corpo não é JSON nem formulário, ou não está em UTF-8.',
    remedy: 'Envie `application/json` ou `application/x-www-form-urlencoded`, em UTF-8 e sem compressão.',
  },
  HEADERS_TOO_LARGE: {
    meaning: 'Os cabeçalhos são grandes demais.',
    remedy: 'Envie no máximo 16 KiB de cabeçalhos.',
  },
}
