/** Clients that common generators make from the OpenAPI document, where these are installed: each compiles and logs in. */
import { execFile } from 'node:child_process'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { goEnv, runs } from '../_helpers/examples.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { testWith } from '../_helpers/tools.js'

const service = serviceForFile()
const run = promisify(execFile)
const document = createRequire(import.meta.url).resolve('#openapi/1.0.2.json')

/** A program logs in with the password and with a wrong one; it prints the parts of the token, and the reason. */
interface Generator {
  readonly there: boolean
  /** Makes client and program; returns the command that runs it. */
  make(folder: string): Promise<[string, ...string[]]>
}

const python = `
import os
from authentication_and_user_registry_client import Client
from authentication_and_user_registry_client.api.users import login
from authentication_and_user_registry_client.models import LoginJsonBody, Problem

client = Client(base_url=os.environ["AUTH_URL"])
for password in (os.environ["PASSWORD"], "wrong"):
    answer = login.sync(client=client, body=LoginJsonBody(username=os.environ["NAME"], password=password))
    print(answer.reason.value if isinstance(answer, Problem) else len((answer or "").split(".")))
`

const typescript = `
declare const process: { env: Record<string, string> }
import createClient from 'openapi-fetch'
import type { paths } from './schema.d.ts'

const client = createClient<paths>({ baseUrl: process.env.AUTH_URL! })
for (const password of [process.env.PASSWORD!, 'wrong']) {
  const body = { username: process.env.NAME!, password }
  const { data, error } = await client.POST('/users/login', { body, parseAs: 'text' })
  console.log(error ? error.reason : data.split('.').length)
}
`

const go = `package main

import (
	"context"
	"fmt"
	"os"
	"strings"
)

func main() {
	client, err := NewClientWithResponses(os.Getenv("AUTH_URL"))
	if err != nil {
		panic(err)
	}
	for _, password := range []string{os.Getenv("PASSWORD"), "wrong"} {
		body := LoginJSONRequestBody{Username: os.Getenv("NAME"), Password: password}
		answer, err := client.LoginWithResponse(context.Background(), &LoginParams{}, body)
		if err != nil {
			panic(err)
		}
		if refusal := answer.ApplicationproblemJSON404; refusal != nil {
			fmt.Println(refusal.Reason)
		} else {
			fmt.Println(len(strings.Split(string(answer.Body), ".")))
		}
	}
}
`

const java = `
import org.openapitools.client.*;
import org.openapitools.client.api.UsersApi;
import org.openapitools.client.model.*;

public class Login {
  public static void main(String[] arguments) throws Exception {
    ApiClient client = new ApiClient();
    client.updateBaseUri(System.getenv("AUTH_URL"));
    for (String password : new String[] {System.getenv("PASSWORD"), "wrong"}) {
      try {
        LoginRequest request = new LoginRequest().username(System.getenv("NAME")).password(password);
        System.out.println(new UsersApi(client).login(request, null, null).split("\\\\.").length);
      } catch (ApiException refused) {
        System.out.println(client.getObjectMapper().readValue(refused.getResponseBody(), Problem.class).getReason());
      }
    }
  }
}
`

const generators: Record<string, Generator> = {
  'openapi-python-client': {
    there: runs('python3', '-c', 'import sys, venv; sys.exit(sys.version_info < (3, 11))'),
    async make(cwd) {
      await run('python3', ['-m', 'venv', 'venv'], { cwd })
      await run('venv/bin/pip', ['install', '--quiet', 'openapi-python-client==0.29.1', 'mypy==1.18.2'], { cwd })
      const generate = ['generate', '--path', document, '--output-path', 'client', '--fail-on-warning']
      const env = { ...process.env, PATH: `${join(cwd, 'venv/bin')}:${process.env.PATH}` }
      await run('venv/bin/openapi-python-client', generate, { cwd, env })
      await writeFile(join(cwd, 'client/login.py'), python)
      await run('../venv/bin/mypy', ['--strict', 'login.py'], { cwd: join(cwd, 'client') })
      return [join(cwd, 'venv/bin/python'), join(cwd, 'client/login.py')]
    },
  },
  'openapi-typescript': {
    there: true,
    async make(cwd) {
      const packages = ['openapi-typescript@7.13.0', 'openapi-fetch@0.17.0', 'typescript@5.9.3']
      await writeFile(join(cwd, 'package.json'), '{}')
      await run('npm', ['install', '--silent', '--no-audit', '--no-fund', ...packages], { cwd })
      await run('npx', ['openapi-typescript', document, '-o', 'schema.d.ts'], { cwd })
      await writeFile(join(cwd, 'login.mts'), typescript)
      const options = ['--strict', '--module', 'nodenext', '--target', 'es2022', '--lib', 'es2023,dom']
      await run('npx', ['tsc', ...options, 'login.mts'], { cwd })
      return [process.execPath, join(cwd, 'login.mjs')]
    },
  },
  'oapi-codegen': {
    there: runs('oapi-codegen', '--version') && runs('go', 'version'),
    async make(cwd) {
      await run('go', ['mod', 'init', 'login'], { cwd })
      await run('oapi-codegen', ['-generate', 'types,client', '-package', 'main', '-o', 'client.go', document], { cwd })
      await writeFile(join(cwd, 'main.go'), go)
      for (const args of [
        ['get', './...'],
        ['vet', '.'],
        ['build', '-o', 'login', '.'],
      ])
        await run('go', args, { cwd, env: goEnv })
      return [join(cwd, 'login')]
    },
  },
  'openapi-generator-cli (Java)': {
    there: runs('openapi-generator-cli', 'version') && runs('mvn', '--version'),
    async make(cwd) {
      const generate = ['generate', '-i', document, '-g', 'java', '--library', 'native', '-o', 'client']
      await run('openapi-generator-cli', generate, { cwd, maxBuffer: 2 ** 26 })
      const client = join(cwd, 'client')
      await mkdir(join(client, 'src/main/java'), { recursive: true })
      await writeFile(join(client, 'src/main/java/Login.java'), java)
      const goals = ['compile', 'dependency:build-classpath', '-Dmdep.outputFile=classpath']
      await run('mvn', ['-q', ...goals], { cwd: client, maxBuffer: 2 ** 26 })
      const classpath = await readFile(join(client, 'classpath'), 'utf8')
      return ['java', '-cp', `${join(client, 'target/classes')}:${classpath}`, 'Login']
    },
  },
}

for (const [name, { there, make }] of Object.entries(generators)) {
  const title = `a client by ${name} compiles, logs in, and gets the reason of a refusal`
  testWith(name, there)(title, async t => {
    // Installs packages.
    t.timeout(600_000)
    const [command, ...args] = await make(await temporaryFolder(t))
    const { username } = await service.signUp('ROLE_CLIENT')
    const env = { PATH: process.env.PATH, AUTH_URL: service.http, NAME: username, PASSWORD: password }
    const { stdout } = await run(command, args, { env })
    t.is(stdout, '3\nINVALID_CREDENTIALS\n')
  })
}
