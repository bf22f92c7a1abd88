// Package pagetest runs what pages of the documentation tell a reader to type, line by line, against
// real servers. It has tests only.
package pagetest
