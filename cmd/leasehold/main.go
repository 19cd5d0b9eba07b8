// Command leasehold is the one binary of Leasehold: the service, the service with a private
// PostgreSQL for development, migrations, and the proto files for clients.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 a check found something.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], streams{out: os.Stdout, err: os.Stderr}, os.LookupEnv))
}
