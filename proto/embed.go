// Package proto holds the proto files of the API, for `leasehold proto`.
package proto

import "embed"

// Files has the API's own files, at the paths by which they import one another.
//
//go:embed leasehold/v1/*.proto
var Files embed.FS
