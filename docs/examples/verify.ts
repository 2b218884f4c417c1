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
    // Answer 401 for the first, 503 for the second.
    console.log(`${error.code === 'INVALID_TOKEN' ? 'invalid' : 'unavailable'} ${error.message}`)
  }
}
verifier.close()
