/**
 * Reflection (grpc.reflection.v1 and v1alpha), loaded when somebody asks for the first time: it brings a second protobuf
 * library.
 */
import { type DescFile, type DescService, toBinary } from '@bufbuild/protobuf'
import { FileDescriptorProtoSchema } from '@bufbuild/protobuf/wkt'
import type { handleBidiStreamingCall, MethodDefinition, Server, ServiceDefinition } from '@grpc/grpc-js'
import { madeOnce, onFirstUse } from '../process/lazy.js'

const load = onFirstUse<typeof import('@grpc/reflection')>('@grpc/reflection')

type Handle = handleBidiStreamingCall<unknown, unknown>
type Method = MethodDefinition<unknown, unknown> & { readonly handle: Handle }

/** Adds reflection on services to a server. */
export function addReflection(server: Server, services: readonly DescService[]): void {
  const methods = madeOnce(() => loadMethods(services))
  for (const version of ['v1', 'v1alpha']) {
    const path = `/grpc.reflection.${version}.ServerReflection/ServerReflectionInfo`
    const method = () => methods().get(path)!
    const definition: MethodDefinition<unknown, unknown> = {
      path,
      requestStream: true,
      responseStream: true,
      requestSerialize: message => method().requestSerialize(message),
      requestDeserialize: bytes => method().requestDeserialize(bytes),
      responseSerialize: message => method().responseSerialize(message),
      responseDeserialize: bytes => method().responseDeserialize(bytes),
    }
    const handle: Handle = call => method().handle(call)
    server.addService({ serverReflectionInfo: definition }, { serverReflectionInfo: handle })
  }
}

/** The methods that the package would add to a server, by their paths. */
function loadMethods(services: readonly DescService[]): Map<string, Method> {
  const { ReflectionService } = load()
  const reflection = new ReflectionService({ auth: { fileDescriptorProtos: descriptors(services) } } as never, {
    services: services.map(({ typeName }) => typeName),
  })
  const methods = new Map<string, Method>()
  reflection.addToServer({
    addService(definition: ServiceDefinition, handlers: Record<string, Handle>) {
      for (const [name, method] of Object.entries(definition)) {
        const handle = handlers[name] ?? handlers[method.originalName!]
        methods.set(method.path, { ...method, handle: handle! })
      }
    },
  } as unknown as Server)
  return methods
}

/** The descriptors of all services and of what they import, imports first. */
function descriptors(services: readonly DescService[]): Uint8Array[] {
  const files = new Map<string, Uint8Array>()
  const visit = (file: DescFile) => {
    if (files.has(file.name)) return
    for (const dependency of file.dependencies) visit(dependency)
    files.set(file.name, toBinary(FileDescriptorProtoSchema, file.proto))
  }
  for (const service of services) visit(service.file)
  return [...files.values()]
}
