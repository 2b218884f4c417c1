/**
 * Reflection (grpc.reflection.v1, and v1alpha, which has the same messages). The package @grpc/reflection isn't used: it
 * loads grpc-js once more and a second protobuf library, which take 90 ms and 16 MB of each start.
 */
import {
  create,
  createRegistry,
  type DescFile,
  type DescService,
  type MessageInitShape,
  toBinary,
} from '@bufbuild/protobuf'
import { FileDescriptorProtoSchema } from '@bufbuild/protobuf/wkt'
import { status as Status } from '@grpc/grpc-js'
import { file_google_rpc_error_details } from '../../proto/gen/google/rpc/error_details_pb.js'
import { file_google_rpc_status } from '../../proto/gen/google/rpc/status_pb.js'
import {
  type ServerReflectionRequest,
  type ServerReflectionResponse,
  ServerReflectionResponseSchema,
} from '../../proto/gen/grpc/reflection/v1/reflection_pb.js'

type Request = ServerReflectionRequest['messageRequest']
type Response = MessageInitShape<typeof ServerReflectionResponseSchema>['messageResponse']

/** Names under which the service is served. */
export const reflectionNames = ['grpc.reflection.v1.ServerReflection', 'grpc.reflection.v1alpha.ServerReflection']

/** Creates a function that answers requests about services, and about error details, which no service imports. */
export function createReflection(
  services: readonly DescService[],
): (request: ServerReflectionRequest) => ServerReflectionResponse {
  const files = withImports([
    ...services.map(({ file }) => file),
    file_google_rpc_error_details,
    file_google_rpc_status,
  ])
  const types = createRegistry(...files)

  function fileOf({ case: kind, value }: Request): DescFile | undefined {
    if (kind === 'fileByFilename') return files.find(({ name }) => `${name}.proto` === value)
    // A method, field or enum value is in the file of its parent.
    if (kind === 'fileContainingSymbol') return (types.get(value) ?? types.get(value.replace(/\.[^.]*$/, '')))?.file
    return undefined
  }

  function answer(request: Request): Response {
    if (request.case === 'listServices')
      return {
        case: 'listServicesResponse',
        value: { service: services.map(({ typeName }) => ({ name: typeName })) },
      }
    // Nothing here has extensions.
    if (request.case === 'allExtensionNumbersOfType' && types.getMessage(request.value))
      return { case: 'allExtensionNumbersResponse', value: { baseTypeName: request.value } }
    const file = fileOf(request)
    if (!file) return { case: 'errorResponse', value: { errorCode: Status.NOT_FOUND, errorMessage: 'Not found.' } }
    const fileDescriptorProto = withImports([file]).map(({ proto }) => toBinary(FileDescriptorProtoSchema, proto))
    return { case: 'fileDescriptorResponse', value: { fileDescriptorProto } }
  }

  return request =>
    create(ServerReflectionResponseSchema, {
      validHost: request.host,
      originalRequest: request,
      messageResponse: answer(request.messageRequest),
    })
}

/** Files and all that they import, each once. */
function withImports(files: readonly DescFile[], found = new Set<DescFile>()): DescFile[] {
  for (const file of files) {
    if (found.has(file)) continue
    found.add(file)
    withImports(file.dependencies, found)
  }
  return [...found]
}
