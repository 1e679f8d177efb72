/* The lower bound of the column decoders: walks messages and copies their cells without interpreting them.
 *
 * Each tuple is a row; an old tuple precedes the new one. The cell in column c is appended to out[c], and its end offset
 * to ends[c]. A NULL or UNCHANGED cell has no bytes. All reads and writes are bounds-checked. The caller passes buffers
 * and reuses them for the next batch, so that no memory is allocated.
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>

static uint32_t uint32_at(const uint8_t *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return ntohl(value);
}

/* Returns the number of rows, or -1 if a message is malformed, has another number of columns, or a buffer is full. */
int64_t walk(const uint8_t *data, const int32_t *offsets, int64_t messages, int columns, uint8_t **out,
             int32_t **ends, int32_t *used, int32_t room, int64_t most_rows) {
    int64_t rows = 0;
    memset(used, 0, columns * sizeof *used);
    for (int64_t i = 0; i < messages; i++) {
        const uint8_t *at = data + offsets[i], *end = data + offsets[i + 1];
        if (at == end) return -1;
        uint8_t tag = *at++;
        if (tag != 'I' && tag != 'U' && tag != 'D') continue; /* other messages have no cells */
        if (end - at < 4) return -1;
        at += 4; /* OID of the relation */
        while (at < end) {
            if (end - at < 3 || rows == most_rows) return -1;
            int count = at[1] << 8 | at[2]; /* at[0] is K, O or N */
            at += 3;
            if (count != columns) return -1;
            for (int c = 0; c < count; c++) {
                if (at == end) return -1;
                uint8_t kind = *at++;
                if (kind == 't' || kind == 'b') {
                    if (end - at < 4) return -1;
                    uint32_t length = uint32_at(at);
                    at += 4;
                    if (length > end - at || length > (uint32_t)(room - used[c])) return -1;
                    memcpy(out[c] + used[c], at, length);
                    at += length;
                    used[c] += length;
                } else if (kind != 'n' && kind != 'u') {
                    return -1;
                }
                ends[c][rows] = used[c];
            }
            rows++;
        }
    }
    return rows;
}
