// Package doctest reads the documents of this repository, so that tests can hold them against
// what they speak of: code blocks are compiled or run, tables are compared with the flags,
// methods and columns that they list. A document that no test reads is wrong within a year.
//
// It knows as much of Markdown as the documents use: headings, fenced code blocks and tables.
package doctest
