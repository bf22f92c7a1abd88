// Package guard holds tests of the source text itself: which package may import
// which, that SQL lives in .sql files, that every package says what it is for. They
// build nothing and run among the quick tests.
//
// A test that fails names the file and the rule. If the rule is wrong for the new
// code, change its table, which is at the top of the test's file, with a reason.
package guard
