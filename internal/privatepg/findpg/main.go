// Command findpg prints the folder of the PostgreSQL binaries that the private
// server would use, or in one line how to get some, with exit code 1. The
// Makefile asks it before it installs any.
package main

import (
	"fmt"
	"os"

	"github.com/leasehold/leasehold/internal/privatepg"
)

func main() {
	found, err := privatepg.Find()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(found.Dir)
}
