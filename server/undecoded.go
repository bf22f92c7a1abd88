package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/perceptor/perceptor/task"
)

// The generated code of the HTTP side turns each error of a decoder or a body into its text. So
// these texts are written for [decodingError], which turns them into what the caller sees.
const (
	// faultsText begins the text of faults, which follow in JSON.
	faultsText = "faults: "
	// bodyCut begins the text for a body that is larger than the limit, which follows.
	bodyCut = "body over the limit of "
	// bodySlow is the text for a body that did not arrive in time.
	bodySlow = "body did not arrive in time"
	// bodyBusy is the text for a body that is not decoded because many others of its tenant are.
	bodyBusy = "too many bodies of the tenant are decoded"
)

// undecodable is the error of the HTTP side for a request with faults. A fault without a field is
// one of the whole request.
func undecodable(faults ...task.Fault) error {
	text, err := json.Marshal(faults)
	if err != nil {
		return err // they are texts
	}
	return errors.New(faultsText + string(text))
}

// faultsOfText is the inverse of [undecodable].
func faultsOfText(text string) (faults []task.Fault, ok bool) {
	text, ok = strings.CutPrefix(text, faultsText)
	return faults, ok && json.Unmarshal([]byte(text), &faults) == nil
}

// undecoded returns the status for a request that cannot be decoded.
func undecoded(faults []task.Fault) error {
	bad := &errdetails.BadRequest{}
	var texts []string
	for _, f := range faults {
		if f.Field == "" {
			return malformed(f.Message)
		}
		bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: f.Field, Description: shortened(f.Message)})
		texts = append(texts, f.Field+": "+f.Message)
	}
	return reasoned(task.ReasonMalformedRequest, strings.Join(texts, "; "), bad)
}

func tooLarge(limit int64) error {
	return reasoned(task.ReasonRequestTooLarge, fmt.Sprintf("the body has more than %d bytes", limit))
}

// refusingBody is a body whose errors have texts that [decodingError] knows.
type refusingBody struct{ io.ReadCloser }

// Read implements [io.Reader].
func (b refusingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var cut *http.MaxBytesError
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return n, err
	case errors.As(err, &cut):
		return n, fmt.Errorf("%s%d", bodyCut, cut.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, errors.New(bodySlow)
	case errors.Is(err, errBodyBusy):
		return n, err
	}
	return n, undecodable(task.Fault{Message: "the body did not arrive completely"})
}
