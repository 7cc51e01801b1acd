/* Puts entropy_scan.c in the place of libjpeg's own entropy decoder, to read the scan of a baseline
 * JPEG. That decoder takes two thirds of libjpeg's time. libjpeg does all other work on a JPEG. */
#include "decoder.h"

/* Takes the place of libjpeg's decode_mcu: reads one unit into `blocks`, which libjpeg has set
 * to zeros. NULL comes from jpeg_skip_scanlines(), for rows above the window. error_exit does
 * not return. */
static boolean read_unit(j_decompress_ptr info, JBLOCKROW *blocks) {
    fj_decoder *decoder = info->client_data;
    int16_t *own[FJ_MAX_BLOCKS];
    for (int k = 0; blocks && k < info->blocks_in_MCU; k++)
        own[k] = *blocks[k];
    if (!fj_read_unit(&decoder->scan, blocks ? own : NULL))
        info->err->error_exit((j_common_ptr)info);
    return TRUE;
}

/* Returns 1 for sequential Huffman coding of 8 bits (T.81 Annex F) in one scan of all
 * components, which entropy_scan.c can read. libjpeg's own decoder reads the others. */
static int is_baseline(j_decompress_ptr info) {
    return !info->progressive_mode && !info->arith_code && !jpeg_has_multiple_scans(info) &&
           info->data_precision == 8 && info->Ss == 0 && info->Se == DCTSIZE2 - 1 &&
           info->Ah == 0 && info->Al == 0;
}

/* Gives entropy_scan.c the tables of each block of a unit. Tables are kept by number: those of the
 * image before are made again only if they differ. */
static void set_blocks(fj_decoder *decoder) {
    j_decompress_ptr info = &decoder->info;
    fj_scan *scan = &decoder->scan;
    /* libjpeg has worked out the order of a unit's blocks (T.81 A.2.3) and has checked the
     * tables. */
    scan->num_blocks = info->blocks_in_MCU;
    for (int k = 0; k < scan->num_blocks; k++) {
        int component = info->MCU_membership[k];
        const jpeg_component_info *part = info->cur_comp_info[component];
        fj_huffman *dc = &decoder->dc[part->dc_tbl_no], *ac = &decoder->ac[part->ac_tbl_no];
        const JHUFF_TBL *dc_codes = info->dc_huff_tbl_ptrs[part->dc_tbl_no];
        const JHUFF_TBL *ac_codes = info->ac_huff_tbl_ptrs[part->ac_tbl_no];
        fj_make_huffman(dc, dc_codes->bits, dc_codes->huffval);
        fj_make_huffman(ac, ac_codes->bits, ac_codes->huffval);
        scan->blocks[k] = (fj_block){dc, ac, component};
    }
}

/* The columns of units that have pixels of the window; rows are told apart by libjpeg's NULL. */
void fj_read_baseline(fj_decoder *decoder, int left) {
    j_decompress_ptr info = &decoder->info;
    if (!decoder->reads_scan || !is_baseline(info))
        return;
    fj_scan *scan = &decoder->scan;
    /* A scan of one component is not interleaved: a unit is one block, whatever its sampling
     * factors (T.81 A.2.2). */
    int width = info->num_components == 1 ? DCTSIZE : DCTSIZE * info->max_h_samp_factor;
    scan->num_columns = (int)info->MCUs_per_row;
    scan->first_column = left / width;
    scan->end_column = (left + (int)info->output_width + width - 1) / width;
    scan->interval = (int)info->restart_interval;
    set_blocks(decoder);
    /* Without memory libjpeg's own decoder stays in its place. */
    if (fj_begin_scan(scan, info->src->next_input_byte, info->src->bytes_in_buffer))
        info->entropy->decode_mcu = read_unit;
}
