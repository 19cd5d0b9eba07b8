// Package protofiles hands out the proto files of the API for any language (R6): without
// the validation rules, because those import a file that plain protoc does not have. The
// bounds that they declare stand in the comments of the fields as well, which stay.
package protofiles

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/leasehold/leasehold/proto"
)

// Files returns the proto files without validation rules, by their import path.
func Files() (map[string][]byte, error) {
	names, err := fs.Glob(proto.Files, "leasehold/v1/*.proto")
	if err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(names))
	for _, name := range names {
		source, err := fs.ReadFile(proto.Files, name)
		if err != nil {
			return nil, err
		}
		plain, err := strip(string(source))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[name] = []byte(plain)
	}
	return out, nil
}

// Write writes the files below dir, which it makes if need be, over files of the same names.
// It returns the import paths, sorted: `protoc -I dir PATH` compiles each.
func Write(dir string) ([]string, error) {
	files, err := Files()
	if err != nil {
		return nil, err
	}
	names := sortedNames(files)
	for _, name := range names {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, files[name], 0o644); err != nil {
			return nil, err
		}
	}
	return names, nil
}
