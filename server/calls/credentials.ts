import { experimental, ServerCredentials } from '@grpc/grpc-js'
import type { Certificates } from '../process/certificates.js'

/**
 * Credentials of every gRPC server of this process: TLS where there is a certificate; callers must present one of the
 * authority where there is one.
 */
export function credentialsOf(certificates: Certificates | undefined): ServerCredentials {
  if (!certificates?.identified) return ServerCredentials.createInsecure()
  const { verifying } = certificates
  // Its parameters are the other way round than it declares them.
  return experimental.createCertificateProviderServerCredentials(
    certificates,
    verifying ? certificates : null,
    verifying,
  )
}
