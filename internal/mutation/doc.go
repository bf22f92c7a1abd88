// Package mutation proves that the tests of the dispatch protocol find the faults
// they are there for. It is mutation testing with a chosen list instead of a
// generated one: each [known way to get the protocol wrong] has a name, and the
// tests listed for it must fail in a program that has the fault.
//
// The product knows nothing of it. A mutation replaces a piece of source text; the
// test writes changed copies of the files into a temporary directory and builds the
// tests of each package with "go test -overlay". All mutations are in one program;
// the environment variable PERCEPTOR_MUTATION says which one is active.
//
// # When a replacement does not apply
//
// TestEveryMutationApplies builds nothing and fails as soon as a piece of text is
// missing or is there twice. Then change the entry in list_test.go:
//
//   - in is a folder of the module. Its .go files without tests are searched, and
//     those of the folders below. The piece old must occur exactly once in all of
//     them; which file has it does not matter.
//   - statement is set for SQL: the piece must occur exactly once in the
//     statement or fragment of that name in the .sql files of the folder.
//   - new takes the place of old. In Go the word MUTATED stands for the condition
//     that the mutation is active, so that the text is right without it. In SQL new
//     is the wrong text itself.
//   - pkg and tests say what must fail, and pass when no mutation is active: a package
//     and a pattern of test names.
//
// [known way to get the protocol wrong]: https://en.wikipedia.org/wiki/Mutation_testing
package mutation
