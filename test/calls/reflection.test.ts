/** Reflection on the gRPC ports, and responses to unknown methods. */
import { create, createFileRegistry, fromBinary } from '@bufbuild/protobuf'
import { type FileDescriptorProto, FileDescriptorProtoSchema, FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt'
import { createClient } from '@connectrpc/connect'
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node'
import { Client, credentials, type ServiceError, status } from '@grpc/grpc-js'
import test, { type ExecutionContext } from 'ava'
import { ServerReflection, type ServerReflectionRequest } from '../../proto/gen/grpc/reflection/v1/reflection_pb.js'
import { formatAddress } from '../../server/process/settings.js'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))

/** The public port and that of Administration, and the services of each. */
const ports = {
  public: { at: () => service.grpc, services: ['auth.v1.Changes', 'auth.v1.ForgotPasswords', 'auth.v1.Users'] },
  Administration: { at: () => formatAddress(service.service.addresses.admin!), services: ['auth.v1.Administration'] },
}

/** The answer of reflection to one request. */
async function reflect(t: ExecutionContext, at: string, messageRequest: ServerReflectionRequest['messageRequest']) {
  const baseUrl = `http://${at}`
  const sessionManager = new Http2SessionManager(baseUrl)
  const client = createClient(ServerReflection, createGrpcTransport({ baseUrl, sessionManager }))
  async function* requests() {
    yield { messageRequest }
  }
  try {
    for await (const { messageResponse } of client.serverReflectionInfo(requests())) return messageResponse
    return t.fail('no answer')
  } finally {
    sessionManager.abort()
  }
}

/** Files in order of their imports; throws if one is missing. */
function inOrder(files: readonly FileDescriptorProto[]): FileDescriptorProto[] {
  const ordered = new Set<FileDescriptorProto>()
  const add = (file: FileDescriptorProto | undefined, name: string) => {
    if (!file) throw new Error(`${name} is missing`)
    for (const dependency of file.dependency)
      add(
        files.find(each => each.name === dependency),
        dependency,
      )
    ordered.add(file)
  }
  for (const file of files) add(file, file.name)
  return [...ordered]
}

for (const [port, { at, services }] of Object.entries(ports)) {
  test(`reflection at the ${port} port lists its services, health and itself`, async t => {
    const answer = await reflect(t, at(), { case: 'listServices', value: '' })
    const names = answer?.case === 'listServicesResponse' ? answer.value.service.map(({ name }) => name) : []
    t.deepEqual(names.sort(), [...services, 'grpc.health.v1.Health', 'grpc.reflection.v1.ServerReflection'])
  })

  test(`reflection at the ${port} port has services and error details, with all that they import`, async t => {
    const symbols = [...services, 'grpc.health.v1.Health', 'grpc.reflection.v1.ServerReflection']
    for (const name of ['ErrorInfo', 'BadRequest', 'RetryInfo', 'Status']) symbols.push(`google.rpc.${name}`)
    for (const symbol of symbols) {
      const answer = await reflect(t, at(), { case: 'fileContainingSymbol', value: symbol })
      if (answer?.case !== 'fileDescriptorResponse') return t.fail(symbol)
      const files = answer.value.fileDescriptorProto.map(bytes => fromBinary(FileDescriptorProtoSchema, bytes))
      const registry = createFileRegistry(create(FileDescriptorSetSchema, { file: inOrder(files) }))
      // Clients assume that the first file is the requested one.
      t.is(`${registry.get(symbol)?.file.name}.proto`, files[0]!.name, symbol)
    }
  })

  test(`a method or a service that does not exist is unimplemented at the ${port} port`, async t => {
    const client = new Client(at(), credentials.createInsecure())
    t.teardown(() => client.close())
    const same = (bytes: Buffer) => bytes
    for (const path of [`/${services[0]}/Nope`, '/unknown.Service/X', '/auth.v1.Nothing/Login']) {
      const error = await new Promise<ServiceError | null>(resolve =>
        client.makeUnaryRequest(path, same, same, Buffer.from('a message'), resolve),
      )
      t.is(error?.code, status.UNIMPLEMENTED, path)
    }
  })
}
