/** nginx with the configuration of deploy/nginx. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Teardown } from './database.js'
import { adapted, authority, type Front, folderOf, servername, startProxy } from './front.js'
import { freePort } from './relay.js'
import { spawnService } from './spawned.js'

/** Header by which a client at 127.0.0.1 takes any address, before nginx looks at it. */
export const addressHeader = 'x-test-address'

/** Starts it in front of a service on a separate database. */
export async function startNginx(t: Teardown): Promise<Front> {
  const service = await spawnService(t)
  const { cert, key } = authority.issue({ name: servername, dnsNames: [servername, 'localhost'] })
  const folder = await folderOf(t, { 'auth.crt': cert, 'auth.key': key })
  const [http, https, grpc] = [await freePort(), await freePort(), await freePort()]
  const server = await adapted('nginx/auth-registry.conf', {
    '/etc/nginx/tls/': `${folder}/`,
    '/var/log/nginx/': `${folder}/`,
    '  listen [::]:80;\n': '',
    '  listen [::]:443 ssl http2;\n': '',
    'listen 80;': `listen 127.0.0.1:${http};`,
    'listen 443 ': `listen 127.0.0.1:${https} `,
    'listen 50443 ': `listen 127.0.0.1:${grpc} `,
    'server 127.0.0.1:8080 ': `server ${new URL(service.http).host} `,
    'server 127.0.0.1:50051 ': `server ${service.grpc} `,
  })
  const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(name => `${name}_temp_path ${folder}/${name};`)
  const around = [
    `daemon off; pid ${folder}/pid; error_log stderr crit;`,
    'worker_processes 2; worker_rlimit_nofile 16384; events { worker_connections 8192; }',
    `http { ${paths.join(' ')} set_real_ip_from 127.0.0.1; real_ip_header ${addressHeader};`,
    `include ${folder}/auth-registry.conf; }`,
  ]
  await writeFile(join(folder, 'auth-registry.conf'), server)
  await writeFile(join(folder, 'nginx.conf'), around.join('\n'))
  await startProxy(t, 'nginx', ['-p', folder, '-c', `${folder}/nginx.conf`, '-e', 'stderr'], https)
  const { certificate: ca } = authority
  return { https: { port: https, ca, servername }, grpc: { port: grpc, ca, servername }, service }
}
