package outbox

// MarkMode is how rows are marked once they are on the stream.
type MarkMode string

// The modes.
const (
	// MarkAuto is MarkPublishedAt where the table has the column and the role
	// may update it, else MarkNone.
	MarkAuto        MarkMode = "auto"
	MarkPublishedAt MarkMode = "published-at" // set the published_at column
	MarkDelete      MarkMode = "delete"       // delete the row
	MarkNone        MarkMode = "none"         // leave the table alone
)
