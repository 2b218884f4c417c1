/** Comments of the definitions in proto/, which the generated code doesn't have. */
import { fromBinary } from '@bufbuild/protobuf'
import { FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt'

/** Comments by full names, such as `auth.v1.User.id` or `auth.v1.Reason.REASON_INTERNAL`, in Markdown. */
export type Comments = ReadonlyMap<string, string>

/** Reads the comments from an image of `buf build`, which is a FileDescriptorSet with source information. */
export function readComments(image: Uint8Array): Comments {
  const comments = new Map<string, string>()
  for (const { package: name, service, messageType, enumType, sourceCodeInfo } of fromBinary(
    FileDescriptorSetSchema,
    image,
  ).file) {
    // A path has the field numbers and indexes that lead to a definition (descriptor.proto).
    const names = new Map<string, string>()
    const add = (
      number: number,
      definitions: readonly { name: string }[],
      inner: (index: number) => readonly { name: string }[],
    ) =>
      definitions.forEach((definition, index) => {
        names.set(`${number},${index}`, `${name}.${definition.name}`)
        inner(index).forEach(
          (each, at) => void names.set(`${number},${index},2,${at}`, `${name}.${definition.name}.${each.name}`),
        )
      })
    add(4, messageType, index => messageType[index]!.field)
    add(5, enumType, index => enumType[index]!.value)
    add(6, service, index => service[index]!.method)
    for (const { path, leadingComments } of sourceCodeInfo?.location ?? []) {
      const named = names.get(path.join())
      if (named !== undefined && leadingComments !== '') comments.set(named, unwrap(leadingComments))
    }
  }
  return comments
}

/** Joins the lines of each paragraph. */
function unwrap(comment: string): string {
  return comment
    .split(/\n\s*\n/)
    .map(paragraph => paragraph.trim().replace(/\s*\n\s*/g, ' '))
    .join('\n\n')
}

/** First sentence of a text. */
export function firstSentence(text: string): string {
  return /^.*?\.(?=\s|$)/.exec(text)?.[0] ?? text
}
