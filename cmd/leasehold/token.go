package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/server/identity"
)

func newToken(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make bearer tokens for the access file",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newTokenNew(std))
	return cmd
}

func newTokenNew(std streams) *cobra.Command {
	var n identity.NewToken
	var out string
	var expiresIn time.Duration
	cmd := &cobra.Command{
		Use:   "new --name NAME --role ROLE --queue PATTERN",
		Short: "Make a token and its entry for the access file",
		Long: "Draws a token of 256 random bits. Prints it, or writes it to --out, and prints the\n" +
			"line to add below tokens: in the access file. The file holds only its SHA-256: the\n" +
			"token itself cannot be found out again.",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&n.Name, "name", "", "name of the identity, for logs and records")
	f.StringArrayVar(&n.Roles, "role", nil, "producer, worker, operator or viewer; may be repeated")
	f.StringArrayVar(&n.Queues, "queue", nil, `queues of the roles: a name in which * stands for any characters, "*" for all; may be repeated`)
	f.BoolVar(&n.Payloads, "payloads", false, "let a viewer see payloads, results, checkpoints and details of errors")
	f.DurationVar(&expiresIn, "expires-in", 0, "how long the token is good, from now; 0: until its line is removed")
	f.StringVar(&out, "out", "", "new file, of mode 0600, to write the token to instead of printing it")
	cmd.RunE = func(*cobra.Command, []string) error {
		if expiresIn < 0 {
			return &exitError{code: exitUsage, err: fmt.Errorf("--expires-in must not be negative, got %v", expiresIn)}
		}
		if expiresIn > 0 {
			n.Expires = time.Now().Add(expiresIn)
		}
		token, entry, err := n.Make()
		if err != nil {
			return &exitError{code: exitUsage, err: err}
		}
		if out == "" {
			fmt.Fprintln(std.out, "# the token, shown only now:\n"+token)
		} else if err := writeSecret(out, token); err != nil {
			return failed(err)
		}
		fmt.Fprintln(std.out, "# its line for the access file, below tokens:\n"+entry)
		return nil
	}
	return cmd
}

// writeSecret makes a file that only its owner can read. It overwrites none: that could be
// the token of somebody who still needs it.
func writeSecret(path, secret string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(file, secret); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}
