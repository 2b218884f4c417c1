// Verifies tokens of the registry offline and follows its revocations.
import { createInterface } from 'node:readline'
import { createVerifier, VerifyError } from 'auth-registry-client/verify'

const { AUTH_URL: url = 'http://127.0.0.1:8080', AUTH_KEY: key = '', AUTH_ISSUER: issuer = url } = process.env
const verifier = createVerifier({ url, key, issuer, audience: process.env.AUTH_AUDIENCE ?? 'work-packages' })

for await (const token of createInterface({ input: process.stdin })) {
  try {
    const { claims } = await verifier.verify(token.trim())
    console.log(`valid ${claims.sub}`)
  } catch (error) {
    if (!(error instanceof VerifyError)) throw error
    // Answer with `error.status`: 401, 403 before activation, or 503.
    console.log(`${error.code === 'UNAVAILABLE' ? 'unavailable' : 'invalid'} ${error.message}`)
  }
}
verifier.close()
