package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/internal/protofiles"
)

func newProto(std streams) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "proto --out DIR",
		Short: "Write the proto files of the API, for clients in any language",
		Long: "Writes the proto files of the API to DIR/leasehold/v1. They are those of this\n" +
			"binary without the validation options, and import nothing but protobuf's own\n" +
			"files, so that plain protoc compiles them:\n\n" +
			"  leasehold proto --out protos\n" +
			"  protoc -I protos --python_out=. protos/leasehold/v1/*.proto",
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&out, "out", "", "folder to write to; made if it is missing")
	cmd.RunE = func(*cobra.Command, []string) error {
		if out == "" {
			return &exitError{code: exitUsage, err: errors.New("--out is required")}
		}
		names, err := protofiles.Write(out)
		if err != nil {
			return failed(err)
		}
		for _, name := range names {
			fmt.Fprintln(std.out, filepath.Join(out, filepath.FromSlash(name)))
		}
		return nil
	}
	return cmd
}
