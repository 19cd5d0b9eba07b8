package server

import (
	"google.golang.org/protobuf/proto"

	"github.com/leasehold/leasehold/store"
)

// defaultPageSize is what a list answers where the request does not say (R4).
const defaultPageSize = 50

func pageSize(asked *int32) int {
	if asked == nil {
		return defaultPageSize
	}
	return int(*asked)
}

// page makes the store's page of a request's size and token. Every list is bounded in
// bytes, whatever its view: a last error may have 32 KiB, times 1,000 jobs.
func (s *Server) page(scope pageScope, size *int32, token string) (store.Page, error) {
	after, err := s.pages.open(scope, token)
	if err != nil {
		return store.Page{}, err
	}
	return store.Page{Size: pageSize(size), Bytes: store.DefaultAnswerBytes, After: after}, nil
}

// fitting is how many of the messages, from the first on, an answer has room for beside
// used bytes; at least one, so that a list always moves on. The store bounds the content of
// a page; this bounds what the encoding makes of it.
func fitting[M proto.Message](messages []M, used int) int {
	for i, m := range messages {
		const frame = 8 // tag and length
		used += proto.Size(m) + frame
		if used > maxAnswerBytes && i > 0 {
			return i
		}
	}
	return len(messages)
}
